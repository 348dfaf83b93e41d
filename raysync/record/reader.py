"""Read a record, which may be damaged or come from a stranger.

Files are checked as they are read; nothing is imported for them unless the record is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from raysync import config
from raysync.config import Experiment, Target
from raysync.config.bounded_file import open_plain
from raysync.core.journal import Header, Line, read, read_header
from raysync.core.metrics import ACCURACY, PrimaryMetric
from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.class_loading import without_imports
from raysync.record.checkpoints import CHECKPOINTS
from raysync.record.journal_file import JournalFile
from raysync.record.measures import Measures
from raysync.record.push_rows import PushRow, columns_of
from raysync.record.run_end import RunEnd, end_in
from raysync.record.schemas import (
    Environment,
    OtherSchemaError,
    Summary,
    checked,
    evaluations_in,
    frame_in,
    mapping_in,
)
from raysync.record.storage import Location, display_name, join, listdir, local_copy
from raysync.record.writer import (
    CONFIG,
    ENVIRONMENT,
    EVALUATIONS,
    JOURNAL,
    MODEL_FILES,
    PUSHES,
    RECORD_NAME,
    ROWS_PER_GROUP,
    SUMMARY,
    evaluations_table,
    schema_of,
    table_of,
)

if TYPE_CHECKING:
    from raysync.training.files.model_file import Module
    from raysync.training.formats.state_dict import StateDict


CLOSING_BYTES = 100_000  # an upper bound of a closing line, even with a traceback


@dataclass(frozen=True)
class RunRecord:
    """One run on disk; what its summary and tables lack, or have otherwise, its journal tells.

    Every property raises a `ConfigError` if its file is damaged.
    """

    path: Path
    # whether paradigms and models of the user's own may be imported from the recorded modules
    trust: bool = False

    @cached_property
    def config(self) -> Experiment:
        """The resolved experiment; untrusted, a user's own paradigm is a name and parameters."""
        with legible(self.path, "config"), nullcontext() if self.trust else without_imports():
            return config.load(self.path / CONFIG, recorded=True)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Command, versions and machine."""
        with legible(self.path, "environment"):
            return mapping_in(self.path / ENVIRONMENT, Environment)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """`summary.json`, or its keys from the journal; a run never closed is `unfinished`."""
        if self._stored_summary is not None:
            return self._stored_summary
        with legible(self.path):
            about, measures = self._measured
            return checked({**about, **measures.summary(), "wall_seconds": None}, Summary)

    @cached_property
    def end(self) -> RunEnd:
        """How the run ended."""
        summary = self.summary
        if summary.get("end") is not None:
            return end_in(summary, 1)
        workload_samples = None
        with suppress(ConfigError):
            workload_samples = self.header.workload_samples
        return end_in(summary, workload_samples or max(1, summary["samples"]))

    @cached_property
    def pushes(self) -> pd.DataFrame:
        """A row for each push, with the fields of `PushRow`."""
        if self.complete:
            with legible(self.path, "pushes"), suppress(OtherSchemaError):
                return frame_in(self.path / PUSHES, PushRow)
        with legible(self.path):
            return self._pushes_from_journal()

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """A row for each evaluation: mark, progress, version, at, and each metric."""
        if self.complete:
            with legible(self.path, "evaluations"), suppress(OtherSchemaError):
                return evaluations_in(self.path / EVALUATIONS)
        with legible(self.path):
            return pd.DataFrame(evaluations_table(self._measured[1]).to_pandas())

    def state_dict(self, which: str = "final") -> StateDict:
        """Return the weights and buffers of the trained model as they were evaluated.

        Raises `ConfigError` if there is no model `which` (`final`, or `best` with `keep: best`).
        """
        from raysync.training.formats.state_dict import read as read_model

        file = self.model_file(which)
        return read_model(file, display_name(file))

    def model(self, module: Module | None = None, *, which: str = "final") -> Module:
        """Return the trained model as a module in evaluation mode.

        Args:
            module: receives the weights; None: a new model of the experiment, without data, which
                needs trust if it is the user's own.
            which: `final` or `best`.

        Raises:
            ConfigError: the model is missing, damaged, cannot be built, or has other tensors.
        """
        from raysync.training.files.model_file import rebuilt
        from raysync.training.formats.state_dict import fill

        tensors, file = self.state_dict(which), self.model_file(which)
        where = display_name(file)
        if module is None:
            with nullcontext() if self.trust else without_imports():
                module = rebuilt(file, where, self.config)
        return fill(module, tensors, where).eval()

    def model_file(self, which: str = "final") -> Path:
        """Return the file of a trained model; raise `ConfigError` if there is none."""
        if which not in MODEL_FILES:
            raise unknown_name("model", which, MODEL_FILES)
        file = self.path / MODEL_FILES[which]
        if not file.is_file():
            raise ConfigError(f"{display_name(self.path)}: no {file.name}: {self._why_none(which)}")
        return file

    def _why_none(self, which: str) -> str:
        keep, status = self.config.keep, self.summary["status"]
        if status not in ("finished", "diverged"):
            return f"a run saves its model when it has finished, but this run is {status}."
        if keep == "none" or (which == "best" and keep != "best"):
            return f"the run was made with keep: {keep}."
        return "the file was removed, or could not be written: see the remarks in the journal."

    @property
    def complete(self) -> bool:
        """Whether `summary.json` can be read; otherwise, everything comes from the journal."""
        return self._stored_summary is not None

    @property
    def ended(self) -> bool:
        """Whether the journal has its closing line; not after a kill, or if the file was cut."""
        return bool(self.closing_line)

    @cached_property
    def closing_line(self) -> bytes:
        """The closing line of the journal; empty: it has none."""
        with legible(self.path), open_plain(self.path / JOURNAL) as file:
            file.seek(max(0, file.seek(0, 2) - CLOSING_BYTES))
            *_, last, rest = [b"", *file.read().split(b"\n")]
            return last if last.startswith(b'{"type":"Ended"') and not rest else b""

    @property
    def header(self) -> Header:
        """The first line of the journal."""
        with legible(self.path), JournalFile(self.path / JOURNAL) as file:
            return read_header(file.readline())

    def journal(self) -> Iterator[Line]:
        """Yield the lines in order: events with their decisions, evaluations, the end."""
        with legible(self.path), JournalFile(self.path / JOURNAL) as file:
            yield from read(file)[1]

    @cached_property
    def _stored_summary(self) -> dict[str, Any] | None:
        """`summary.json`; None: missing, empty or damaged, as a full disk leaves it."""
        try:
            return mapping_in(self.path / SUMMARY, Summary)
        except (OSError, ValueError):
            return None

    @cached_property
    def _measured(self) -> tuple[dict[str, Any], Measures]:
        """The `about` of the journal's header, and the measures of all lines, without rows."""
        with JournalFile(self.path / JOURNAL) as file:
            head, lines = read(file)
            measures = measures_of(head)
            for line in lines:
                measures.feed((line,))
        measures.close()
        return dict(head.about), measures

    def _pushes_from_journal(self) -> pd.DataFrame:
        rows = self._rows()
        tables = [schema_of(PushRow).empty_table()]
        # in groups: an Arrow table takes a tenth of the memory of its rows
        while group := list(islice(rows, ROWS_PER_GROUP)):
            tables.append(table_of(columns_of(group)))
        return pd.DataFrame(pa.concat_tables(tables).to_pandas())

    def _rows(self) -> Iterator[PushRow]:
        with JournalFile(self.path / JOURNAL) as file:
            head, lines = read(file)
            measures = measures_of(head)
            for line in lines:
                yield from measures.feed((line,))
        yield from measures.close()


def load(path: Location, *, trust: bool = False) -> RunRecord:
    """Open the record of a run.

    Args:
        path: its folder, or a URI, which is downloaded until this process ends.
        trust: whether paradigms and models of the user's own may be imported, which runs code.

    Raises:
        ConfigError: no record is there.
    """
    folder = local_copy(path, without=[CHECKPOINTS])
    if not (folder / JOURNAL).is_file() or not (folder / CONFIG).is_file():
        raise ConfigError(f"{path}: not a run folder (no journal.jsonl and config.yaml in it).")
    return RunRecord(folder, trust)


def newest_first(location: Location) -> Iterator[RunRecord]:
    """Yield the records in a folder, latest first; raise `ConfigError` if it is unreachable."""
    for name in filter(RECORD_NAME.match, reversed(listdir(location))):
        if {CONFIG, JOURNAL} <= set(listdir(join(location, name))):
            record = load(join(location, name))
            # a run killed as it began has written nothing
            if (record.path / JOURNAL).stat().st_size:
                yield record


def measures_of(head: Header) -> Measures:
    """Create fresh measures for a journal; raise `ConfigError` if its header is damaged."""
    about, samples = head.about, head.workload_samples
    target, chance = about.get("target"), about.get("chance_accuracy")
    last = about.get("last_evaluations", 1)
    name, mode = about.get("metric", ACCURACY.name), about.get("metric_mode", ACCURACY.mode)
    with suppress(ValidationError):
        goal = None if target is None else Target.model_validate(target)
        primary = TypeAdapter(PrimaryMetric).validate_python({"name": name, "mode": mode})
        is_number = chance is None or type(chance) in (int, float)
        if samples is not None and is_number and type(last) is int and last > 0:
            return Measures(samples, goal, primary, chance, last=last)
    raise ConfigError("the header of the journal is damaged.")


def _other(record: Path) -> str:
    """Say whose a record is, by the version of raysync in its `environment.json`."""
    with suppress(OSError, ImportError, ValueError, KeyError, TypeError):
        packages = mapping_in(record / ENVIRONMENT, Environment)["packages"]
        theirs, ours = _numbers(packages["raysync"]), _numbers(version("raysync"))
        if theirs != ours:
            return "an older" if theirs < ours else "a newer"
    return "an older or a newer"


def _numbers(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d{1,9}", text)]


_DAMAGE = (
    LookupError,
    ValueError,
    AssertionError,
    ArithmeticError,
    RecursionError,
    MemoryError,
    pa.ArrowException,
)


@contextmanager
def legible(record: Path, part: str = "journal") -> Iterator[None]:
    """Turn an error in reading a part of a record into a `ConfigError` that names the record.

    Beside file and parser errors (pyarrow's derive from no others), it catches what a roster raises
    (`LookupError`, `AssertionError`) if valid lines tell an impossible history.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{display_name(record)}: its {part} cannot be read ({error.strerror or error})."
        ) from error
    except _DAMAGE as error:
        if isinstance(error, ConfigError) and part == "journal":  # its message is complete
            raise ConfigError(f"{display_name(record)}: {error}") from error
        message = str(error) if isinstance(error, ValueError) else repr(error)
        reason = " ".join(message.split())[:200]
        raise ConfigError(
            f"{display_name(record)}: its {part} cannot be read: damaged, or of"
            f" {_other(record)} raysync ({reason})."
        ) from error
