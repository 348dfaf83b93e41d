"""Reading a record: `raysync.load(path)`.

A record may be damaged, or a stranger's: what its files hold is checked as they are read
(`raysync.record.schemas`), and nothing that they name is imported unless the record is trusted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from raysync import config
from raysync.config import Experiment
from raysync.core.journal import Evaluation, Line, read
from raysync.errors import ConfigError
from raysync.paradigms.references import without_imports
from raysync.record.measures import Measures
from raysync.record.rows import PushRow
from raysync.record.schemas import Environment, Summary, checked, frame_in, mapping_in
from raysync.record.storage import display_name, local_copy
from raysync.record.writer import ROWS_PER_GROUP, schema_of


@dataclass(frozen=True)
class RunRecord:
    """One run on disk. A run that was killed, or still goes on, is read from its journal up to that
    moment.

    Whatever is damaged is a `ConfigError`.
    """

    path: Path
    trust: bool = False
    """Whether a paradigm that does not come with raysync may be imported from where the record
    says."""

    @cached_property
    def config(self) -> Experiment:
        """The resolved experiment. Of a record that is not trusted, a paradigm of the user's own is
        known by its name and parameters alone."""
        with legible(self.path, "config"), nullcontext() if self.trust else without_imports():
            return config.load(self.path / "config.yaml")

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Command, versions and machine."""
        with legible(self.path, "environment"):
            return mapping_in(self.path / "environment.json", Environment)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The keys of `summary.json`; `status` is `unfinished` for a run that was never closed."""
        if self._closing is not None:
            return self._closing
        with legible(self.path):
            about, measures = self._measured
            return checked({**about, **measures.summary(), "wall_seconds": None}, Summary)

    @cached_property
    def pushes(self) -> pd.DataFrame:
        """One row a push: the fields of `raysync.record.rows.PushRow`."""
        if self.complete:
            with legible(self.path, "pushes"):
                return frame_in(self.path / "pushes.parquet", PushRow)
        with legible(self.path):
            return self._pushes_of_the_journal()

    @cached_property
    def evaluations(self) -> pd.DataFrame:
        """One row an evaluation: the fields of `raysync.core.journal.Evaluation`."""
        if self.complete:
            with legible(self.path, "evaluations"):
                return frame_in(self.path / "evaluations.parquet", Evaluation)
        with legible(self.path):
            rows = [asdict(one) for one in self._measured[1].evaluations]
            frame: pd.DataFrame = pa.Table.from_pylist(rows, schema_of(Evaluation)).to_pandas()
            return frame

    @property
    def complete(self) -> bool:
        """Whether the run was closed, and left a `summary.json` that can be read; otherwise its
        journal tells all.
        """
        return self._closing is not None

    @cached_property
    def ended(self) -> bool:
        """Whether the journal has its closing line. That of a killed run has none, nor one that was
        cut off later.
        """
        with legible(self.path), (self.path / "journal.jsonl").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - CLOSING_BYTES))
            *_, last, rest = [b"", *file.read().split(b"\n")]
            return last.startswith(b'{"ended"') and not rest

    def journal(self) -> Iterator[Line]:
        """Events with their decisions, evaluations and the end, in order."""
        with legible(self.path), (self.path / "journal.jsonl").open(encoding="utf-8") as file:
            yield from read(file)[1]

    @cached_property
    def _closing(self) -> dict[str, Any] | None:
        """What `summary.json` holds; None where it is missing, empty or damaged, as a full disk
        leaves it.
        """
        try:
            return mapping_in(self.path / "summary.json", Summary)
        except (OSError, ValueError):
            return None

    @cached_property
    def _measured(self) -> tuple[dict[str, Any], Measures]:
        """What the journal's header says of the run, and the measures of all its lines; no row of a
        push is kept.
        """
        with (self.path / "journal.jsonl").open(encoding="utf-8") as file:
            head, lines = read(file)
            measures = measures_of(head)
            for line in lines:
                for _ in measures.feed(line):
                    pass
        for _ in measures.close(measures.now):
            pass
        return head.get("about", {}), measures

    def _pushes_of_the_journal(self) -> pd.DataFrame:
        schema = schema_of(PushRow)
        rows = (asdict(row) for row in self._rows())
        tables = [schema.empty_table()]
        while some := list(
            islice(rows, ROWS_PER_GROUP)
        ):  # a table of Arrow takes a tenth of what its rows take
            tables.append(pa.Table.from_pylist(some, schema))
        frame: pd.DataFrame = pa.concat_tables(tables).to_pandas()
        return frame

    def _rows(self) -> Iterator[PushRow]:
        with (self.path / "journal.jsonl").open(encoding="utf-8") as file:
            head, lines = read(file)
            measures = measures_of(head)
            for line in lines:
                yield from measures.feed(line)
        yield from measures.close(measures.now)


CLOSING_BYTES = 100_000
"""A closing line is shorter, even one with a traceback in it."""


@contextmanager
def legible(record: Path, part: str = "journal") -> Iterator[None]:
    """What goes wrong in reading a part of a record: said in a line or two, with the name of the
    record.

    Types are checked where the parts are read. What is caught here beside that is what files and
    parsers raise, and what a roster raises (`LookupError`, `AssertionError`) when a journal's lines
    are good one by one, but tell a history that cannot have happened.

    Raises:
        ConfigError: it cannot be read, is damaged, or is of another raysync.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{display_name(record)}: its {part} cannot be read ({error.strerror or error})."
        ) from error
    except (LookupError, ValueError, AssertionError, ArithmeticError, RecursionError) as error:
        if (
            isinstance(error, ConfigError) and part == "journal"
        ):  # which says what is wrong by itself
            raise ConfigError(f"{display_name(record)}: {error}") from error
        shown = str(error) if isinstance(error, ValueError) else repr(error)
        reason = " ".join(shown.split())[:200]
        raise ConfigError(
            f"{display_name(record)}: its {part} cannot be read: damaged, or of a newer raysync"
            f" ({reason})."
        ) from error


def measures_of(head: Mapping[str, Any]) -> Measures:
    """Fresh ones, for a journal with that header.

    Raises:
        ConfigError: it is not that of a run: there is no workload, or a target is no number.
    """
    about, samples = head.get("about", {}), head["workload_samples"]
    goals = [about.get(key) for key in ("target_accuracy", "target_loss", "chance_accuracy")]
    if samples is None or not all(each is None or type(each) in (int, float) for each in goals):
        raise ConfigError("the header of the journal is damaged.")
    return Measures(samples, *goals)


def load(path: str | Path, *, trust: bool = False) -> RunRecord:
    """Open the record of a run.

    Args:
        path: its folder, or a URI; of a URI a copy is made, which is gone with this process.
        trust: whether a paradigm of the user's own, which the record names, may be imported; that
            runs it.

    Raises:
        ConfigError: there is no record.
    """
    folder = local_copy(path)
    if not (folder / "journal.jsonl").is_file() or not (folder / "config.yaml").is_file():
        raise ConfigError(
            f"{path}: not the record of a run (no journal.jsonl and config.yaml in it)."
        )
    return RunRecord(folder, trust)
