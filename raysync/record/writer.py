"""Write a record while the run goes on.

`journal.jsonl` is the truth: its lines reach the file at once or, where they come fast, within
`DELAY` and the report behind that. So a run that is killed leaves a readable record up to that
moment; one that ends in any other way, by an error or by Ctrl-C, leaves all its lines. All other
files can be derived from it again, and get their names only once they are complete: a full disk
leaves no half-written file that hides the journal.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from errno import ENOENT
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import isfinite, nan
from pathlib import Path
from typing import Any, get_args, get_type_hints
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from raysync.config.secret_masking import masked
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Line, Resumed, header, read
from raysync.core.metrics import RESERVED
from raysync.core.paradigm import AnyParadigm
from raysync.core.structs import encode
from raysync.errors import ConfigError, RunFailed
from raysync.record.checkpoints import CHECKPOINTS, CheckpointWriter
from raysync.record.journal_cut import Resumption, cut_off
from raysync.record.made_here import KEY, making
from raysync.record.measures import Measures
from raysync.record.push_rows import Columns, PushRow, columns_of
from raysync.record.storage import (
    NEW,
    Location,
    completed,
    is_uri,
    join,
    location_of,
    new_copy,
    remove,
)

ROWS_PER_GROUP = 10_000
DELAY = timedelta(seconds=0.1)
"""For how long lines that come fast are kept before they are written to the file."""
JOURNAL, CONFIG, ENVIRONMENT = "journal.jsonl", "config.yaml", "environment.json"
PUSHES, EVALUATIONS, SUMMARY = "pushes.parquet", "evaluations.parquet", "summary.json"
MODEL_FILES = {"final": "model.safetensors", "best": "model-best.safetensors"}
"""Which model -> its file."""
OF_AN_END = (SUMMARY, *MODEL_FILES.values(), PUSHES, EVALUATIONS)
"""What a run leaves when it ends; the summary, which says so, is the first to go when it is
resumed."""
KEPT = ("command", "started", "comparison")
"""What stays in `environment.json` when a run is resumed: the command that began the run is the one
that repeats it."""
STAMP = "%Y%m%d-%H%M%S"
"""How the name of a record begins: with the time."""
NAME = re.compile(r"\d{8}-\d{6}-")
"""A pattern of the same names."""
PACKAGES = ("raysync", "ray", "torch", "torchvision", "numpy", "pandas")
_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
TEXTS = [name for name, hint in get_type_hints(PushRow).items() if str in (hint, *get_args(hint))]
"""The columns of pushes that repeat few values, so that a dictionary of these pays. (Parquet's
writer would make one of each column: for times that takes as long as all the rest, and no less
room.)"""
MARKED = dict.fromkeys(RESERVED, pa.float64()) | {"version": pa.int64()}
"""Column of `evaluations.parquet` beside the metrics -> its type."""


@cache
def schema_of(row: type) -> pa.Schema:
    """Return the Arrow schema of a named tuple of str, int and float, each possibly with None."""
    kinds = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(row).items()}
    return pa.schema([(name, _TYPES[kind.__name__]) for name, (kind, *_) in kinds.items()])


def table_of(columns: Columns) -> pa.Table:
    """Return the columns of pushes as a table."""
    schema = schema_of(PushRow)
    arrays = list(map(pa.array, columns.values(), schema.types))
    return pa.Table.from_arrays(arrays, schema=schema)


def evaluations_table(measures: Measures) -> pa.Table:
    """Return the evaluations as a table: a row a mark; the columns of `MARKED`, then one a metric.
    A metric that an evaluation lacks is NaN there.
    """
    evaluations, columns = measures.evaluations, dict[str, pa.Array]()
    for name, kind in MARKED.items():
        columns[name] = pa.array([getattr(each, name) for each in evaluations], kind)
    for name in measures.metrics:
        values = [float(each.metrics.get(name, nan)) for each in evaluations]
        columns[name] = pa.array(values, pa.float64())
    return pa.table(columns)


def folder_name(output: Location, name: str, kind: str) -> Path:
    """Choose the folder `OUTPUT/NAME/TIME-KIND-ID`, without creating it; behind a URI, a copy of
    it. The id keeps runs of the same second apart.
    """
    stamp = datetime.now().strftime(STAMP)
    plain = re.sub(r"[^A-Za-z0-9=.]+", "-", kind).strip("-")
    location = join(output, name, f"{stamp}-{plain}-{uuid4().hex[:4]}")
    return Path(location).expanduser() if not is_uri(location) else new_copy(str(location))


def make_folder(folder: Path) -> None:
    """Create a folder and its parents.

    Raises:
        ConfigError: it cannot be created there.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"output: {folder}: cannot be created ({error.strerror}).") from error


def environment() -> dict[str, Any]:
    """Describe the process, its machine and the versions of its packages."""
    return {
        "command": [masked(argument) for argument in sys.argv],
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "host": platform.node(),
        "pid": os.getpid(),
        "packages": {package: _version(package) for package in PACKAGES},
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn an error of the disk, while a record is written to it, into one line.

    Raises:
        RunFailed: for example, the disk is full, or the folder is gone.
    """
    try:
        yield
    except OSError as error:
        reason = " ".join((error.strerror or str(error)).split())
        raise RunFailed(
            f"its record cannot be written: {error.filename or folder}: {reason}."
        ) from error


class RecordWriter:
    """Writes one record. It is a context manager: however its block ends, it completes what can be
    completed.

    If the disk is full, or the folder is gone, the first write that fails raises `RunFailed`; later
    ones only feed the measures.
    """

    def __init__(
        self,
        folder: Path,
        config_yaml: str,
        paradigm: AnyParadigm,
        measures: Measures,
        about: Mapping[str, Any],
        began: datetime,
        places: Mapping[str, Any] | None = None,
        checkpoints: CheckpointWriter | None = None,
        goes_on: Resumption | None = None,
        comparison: str = "",
        user_code: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            folder: an empty folder that exists, or that of a run that goes on.
            config_yaml: the resolved experiment.
            paradigm: a fresh paradigm, for the journal's header.
            measures: the measures that take in every line that is written.
            about: the keys of `summary.json` beside the measures.
            began: when the run was requested; `wall_seconds` counts from there to the end of the
                record.
            places: actor -> where it ran; for `environment.json`.
            checkpoints: writes the run's checkpoints; None: into the folder, two of them.
            goes_on: what the run goes on from; None: it begins.
            comparison: the id of the comparison that the run belongs to, if there is one.
            user_code: which code of the user's the run executes, if any; for `environment.json`.

        Raises:
            RunFailed: nothing can be written there.
        """
        self.folder = folder
        self.measures = measures
        self.failure = ""
        """Why the record cannot be completed; empty as long as it can."""
        self.resumed: Resumed | None = None
        """The latest resumption of the run that this writer has written."""
        self.bottleneck: Mapping[str, Any] | None = None
        """Where the time went, as `bottlenecks.Diagnosis.plain` returns it, if that was found."""
        self._about = about
        self._began = began
        self._rows: list[PushRow] = []
        """The rows that are not in the file yet."""
        self._texts: list[bytes] = []
        """The lines that are not in the file yet."""
        self._flushed_at = datetime.min
        """When lines were written to the file last."""
        self._closed = False
        self._checkpoints = checkpoints or CheckpointWriter(folder / CHECKPOINTS)
        process = environment() | {KEY: making(folder), "places": places or {}}
        if user_code is not None:
            process["user_code"] = user_code
        if comparison:
            process["comparison"] = comparison
        if goes_on is not None:
            former = {key: goes_on.environment.get(key) for key in KEPT}
            process |= {key: value for key, value in former.items() if value is not None}
            process["resumed"] = environment()["started"]
        with self._keeping_failure():
            with completed(folder / CONFIG) as new:
                new.write_text(config_yaml, encoding="utf-8")
            _write_json(folder / ENVIRONMENT, process)
            if goes_on is not None:
                self.resume(goes_on.checkpoint, exact=goes_on.exact)
                return
            self._open("w")
            head = header(paradigm, measures.workload_samples, about)
            self._journal.write(f"{head}\n".encode())
            self._journal.flush()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, mode: str) -> None:
        """Open the journal, and the table of pushes from its beginning."""
        self._journal = (self.folder / JOURNAL).open(f"{mode}b")
        self._pushes = pq.ParquetWriter(
            self.folder / f"{PUSHES}{NEW}", schema_of(PushRow), use_dictionary=TEXTS
        )

    def flush(self) -> None:
        """Bring all lines of the journal so far to disk."""
        with self._keeping_failure():
            if self._texts and not self.failure:
                self._flush_lines()

    def resume(self, checkpoint: Checkpoint, *, exact: bool = False) -> None:
        """Go back to a checkpoint of this record: cut the journal off behind it, remove what the
        end of the run has left, and write on from there, with fresh `measures`. However often that
        is interrupted, it can be done again.

        Args:
            checkpoint: what the run goes on from.
            exact: whether the iterations under way go on, in place of beginning again.

        Raises:
            RunFailed: it cannot be written.
            ConfigError: the journal has no line of that checkpoint, or is damaged before it.
        """
        with self._keeping_failure():
            self.flush()
            self._close_files()
            _remove(self.folder / SUMMARY)
            self.resumed = cut_off(self.folder / JOURNAL, checkpoint, exact=exact)
            for name in OF_AN_END:
                _remove(self.folder / name)
            self._checkpoints.go_on_from(checkpoint.number)
            self.measures, self._rows = self.measures.anew(), []
            self._open("a")
            with (self.folder / JOURNAL).open(encoding="utf-8") as journal:
                for line in read(journal)[1]:
                    self._rows += self.measures.take((line,))
                    if len(self._rows) >= ROWS_PER_GROUP:
                        self._flush_rows()

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, whose line in the journal has been written, and remove those that are
        too old. It is not where the record cannot be written any more.

        Raises:
            OSError: it cannot be written. The older ones stay, and the record can go on.
        """
        if self.failure:
            return
        with self._keeping_failure():
            self._flush_lines()
        os.fsync(self._journal.fileno())  # a checkpoint without its line is none
        self._checkpoints.write(checkpoint)

    def write(self, lines: Sequence[Line]) -> None:
        """Write lines of the journal, and the rows that they complete. What is kept of them
        is written with a report without lines, and with the line of the end.

        Raises:
            RunFailed: they cannot be written.
        """
        number = len(self._texts)
        self._texts += [encode(line) + b"\n" for line in lines]
        self._rows += self.measures.take(lines)
        if self.failure:
            self._texts.clear()
            return
        with self._keeping_failure():
            if len(self._rows) >= ROWS_PER_GROUP:
                self._flush_rows()
            since = datetime.now() - self._flushed_at
            is_due = len(self._texts) == number or self.measures.ended is not None
            if is_due or not timedelta(0) <= since < DELAY:
                self._flush_lines()

    def _flush_lines(self) -> None:
        """Write the lines to the file that are not there yet."""
        text, self._texts = b"".join(self._texts), []
        self._journal.write(text)
        self._journal.flush()
        self._flushed_at = datetime.now()
        if not os.fstat(self._journal.fileno()).st_nlink:  # it is open, but has no name
            raise FileNotFoundError(ENOENT, "it was removed", str(self.folder / JOURNAL))

    def write_model(self, which: str, data: bytes) -> None:
        """Write the file of a trained model.

        Args:
            which: `final` or `best`.
            data: the contents of its safetensors file.

        Raises:
            RunFailed: it cannot be written.
        """
        with self._keeping_failure(), completed(self.folder / MODEL_FILES[which]) as new:
            new.write_bytes(data)

    def close(self) -> None:
        """Complete the record; `failure` has the reason if that is impossible."""
        if self._closed:
            return
        self._closed = True
        self._rows += self.measures.close()
        with suppress(RunFailed), self._keeping_failure():
            self._complete()
        self._close_files()

    def _close_files(self) -> None:
        """Close what is open; on a full disk, it still holds what could not be written."""
        for file in ("_journal", "_pushes"):
            if (opened := getattr(self, file, None)) is not None:
                with suppress(OSError):
                    opened.close()

    def _complete(self) -> None:
        if not self.failure:
            self._flush_lines()
        self._journal.close()
        self._flush_rows()
        self._pushes.close()
        (self.folder / f"{PUSHES}{NEW}").replace(self.folder / PUSHES)
        with completed(self.folder / EVALUATIONS) as new:
            pq.write_table(evaluations_table(self.measures), new)
        summary = {
            **self._about,
            **self.measures.summary(),
            "wall_seconds": (datetime.now() - self._began).total_seconds(),
        }
        if self.bottleneck is not None:
            summary["bottleneck"] = dict(self.bottleneck)
        _write_json(
            self.folder / SUMMARY,
            {  # JSON has no word for NaN
                key: None if isinstance(value, float) and not isfinite(value) else value
                for key, value in summary.items()
            },
        )

    def _flush_rows(self) -> None:
        """Write all rows to the file, as a group."""
        rows, self._rows = self._rows, []
        if rows:
            columns = columns_of(rows)
            self.measures.count(columns)
            self._pushes.write_table(table_of(columns))

    @contextmanager
    def _keeping_failure(self) -> Iterator[None]:
        """Keep the first failure in `failure`, and raise each."""
        try:
            with writable(self.folder):
                yield
        except RunFailed as error:
            self.failure = self.failure or str(error)
            raise


def _remove(path: Path) -> None:
    """Remove a file, also behind the URI that it belongs to."""
    path.unlink(missing_ok=True)
    remove(location_of(path))


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    with completed(path) as new:
        new.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
