"""Write a record while the run goes on.

All other files derive from `journal.jsonl`, and get their names once they are complete. Of the
journal a killed run loses at most the lines of `DELAY` and of one report, any other run none.
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
from raysync.errors import RunFailed
from raysync.record.checkpoints import CHECKPOINTS, CheckpointWriter
from raysync.record.journal_file import Resumption, truncate
from raysync.record.made_here import MAKER, this_maker
from raysync.record.measures import Measures
from raysync.record.push_rows import Columns, PushRow, columns_of
from raysync.record.storage import (
    NEW,
    Location,
    completed,
    experiment_folder,
    folder_of,
    join,
    remove,
    short,
    written,
)

ROWS_PER_GROUP = 10_000
DELAY = timedelta(seconds=0.1)  # the longest that lines are buffered
JOURNAL, CONFIG, ENVIRONMENT = "journal.jsonl", "config.yaml", "environment.json"
PUSHES, EVALUATIONS, SUMMARY = "pushes.parquet", "evaluations.parquet", "summary.json"
MODEL_FILES = {"final": "model.safetensors", "best": "model-best.safetensors"}
# removed on a resume, the summary first: it says that the run has ended
END_FILES = (SUMMARY, *MODEL_FILES.values(), PUSHES, EVALUATIONS)
# The command that began the run is the one that repeats it.
KEPT_ON_RESUME = ("command", "started", "requested", "comparison")
STAMP = "%Y%m%d-%H%M%S"
RECORD_NAME = re.compile(r"\d{8}-\d{6}-")  # the beginning of every record's name: its stamp
PACKAGES = ("raysync", "ray", "torch", "torchvision", "numpy", "pandas")
_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
# Texts repeat few values, so a dictionary pays; for times it would cost as much as all the rest.
TEXT_COLUMNS = [
    name for name, hint in get_type_hints(PushRow).items() if str in (hint, *get_args(hint))
]
# column of `evaluations.parquet` that is no metric -> its type
EVALUATION_COLUMNS = dict.fromkeys(RESERVED, pa.float64()) | {"version": pa.int64()}


class RecordWriter:
    """Writes one record, and completes what it can when its block ends.

    The first write that fails raises `RunFailed`; later ones only feed the measures.
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
        resumption: Resumption | None = None,
        comparison: str = "",
        user_code: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            folder: an empty folder that exists, or the record of a resumed run.
            config_yaml: the resolved experiment.
            paradigm: fresh, for the journal's header.
            measures: receive every line.
            about: the keys of `summary.json` beside the measures.
            began: when the run was requested; `wall_seconds` begins there.
            places: actor -> where it ran.
            checkpoints: None: a writer that keeps the latest two in the record.
            resumption: None: a new run.
            comparison: the id, if the run belongs to one.
            user_code: as `user_code()` describes it.
        """
        self.folder = folder
        self.measures = measures
        self.failure = ""  # why the record cannot be completed; empty: it can
        self.resumed: Resumed | None = None  # when the run was resumed last
        # `predict.diagnosis.Diagnosis.plain()`, if there is one
        self.bottleneck: Mapping[str, Any] | None = None
        self._about = about
        self._began = began
        self._rows: list[PushRow] = []  # not in the file yet
        self._texts: list[bytes] = []  # the journal's lines that are not in the file yet
        self._flushed_at = datetime.min
        self._is_closed = False
        self._checkpoints = checkpoints or CheckpointWriter(folder / CHECKPOINTS)
        process = environment() | {MAKER: this_maker(folder), "places": places or {}}
        process["requested"] = began.astimezone().isoformat()  # where `wall_seconds` begins
        if user_code is not None:
            process["user_code"] = user_code
        if comparison:
            process["comparison"] = comparison
        if resumption is not None:
            former = {key: resumption.environment.get(key) for key in KEPT_ON_RESUME}
            process |= {key: value for key, value in former.items() if value is not None}
            process["resumed"] = environment()["started"]
        with self._keeping_failure():
            with completed(folder / CONFIG) as new:
                new.write_text(config_yaml, encoding="utf-8")
            _write_json(folder / ENVIRONMENT, process)
            if resumption is not None:
                self.resume(resumption.checkpoint, exact=resumption.exact)
                return
            self._open("w")
            head = header(paradigm, measures.workload_samples, about, about.get("seed", 0))
            self._journal.write(f"{head}\n".encode())
            self._journal.flush()

    def _open(self, mode: str) -> None:
        self._journal = (self.folder / JOURNAL).open(f"{mode}b")
        self._pushes = pq.ParquetWriter(
            self.folder / f"{PUSHES}{NEW}", schema_of(PushRow), use_dictionary=TEXT_COLUMNS
        )

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, lines: Sequence[Line]) -> None:
        """Write lines and the rows that they complete.

        Lines are buffered. They reach the file `DELAY` after the former ones, with a report without
        lines, and with the line of the end.
        """
        self._texts += [encode(line) + b"\n" for line in lines]
        self._rows += self.measures.feed(lines)
        if self.failure:
            self._texts.clear()
            return
        with self._keeping_failure():
            if len(self._rows) >= ROWS_PER_GROUP:
                self._flush_rows()
            since = datetime.now() - self._flushed_at
            is_late = since >= DELAY or since < timedelta(0)  # negative: the clock was set back
            if is_late or not lines or self.measures.ended is not None:
                self._flush_lines()

    def flush(self) -> None:
        with self._keeping_failure():
            if self._texts and not self.failure:
                self._flush_lines()

    def _flush_lines(self) -> None:
        text, self._texts = b"".join(self._texts), []
        self._journal.write(text)
        self._journal.flush()
        self._flushed_at = datetime.now()
        if not os.fstat(self._journal.fileno()).st_nlink:  # the file is open, but has no name
            raise FileNotFoundError(ENOENT, "it was removed", str(self.folder / JOURNAL))

    def _flush_rows(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            columns = columns_of(rows)
            self.measures.count(columns)
            self._pushes.write_table(table_of(columns))

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint whose line is in the journal, unless the record has failed.

        After an `OSError`, older checkpoints stay, and the record continues.
        """
        if self.failure:
            return
        with self._keeping_failure():
            self._flush_lines()
        os.fsync(self._journal.fileno())  # a checkpoint without its line is none
        self._checkpoints.write(checkpoint)

    def write_model(self, which: str, data: bytes) -> None:
        """Write the model `final` or `best`, the bytes of a safetensors file."""
        with self._keeping_failure(), completed(self.folder / MODEL_FILES[which]) as new:
            new.write_bytes(data)

    # ---- resumption ----

    def resume(self, checkpoint: Checkpoint, *, exact: bool = False) -> None:
        """Truncate the journal behind a checkpoint, remove the files of the end, and append.

        It starts fresh `measures`, and can be repeated if it is interrupted. If `exact`, iterations
        in flight continue rather than begin again.

        Raises:
            RunFailed: the record cannot be written.
            ConfigError: the journal has no line of that checkpoint, or is damaged before it.
        """
        with self._keeping_failure():
            self.flush()
            self._close_files()
            remove(self.folder / SUMMARY)
            self.resumed = truncate(self.folder / JOURNAL, checkpoint, exact=exact)
            for name in END_FILES:
                remove(self.folder / name)
            self._checkpoints.resume_from(checkpoint.number)
            self.measures, self._rows = self.measures.fresh(), []
            self._open("a")
            with (self.folder / JOURNAL).open(encoding="utf-8") as journal:
                for line in read(journal)[1]:
                    self._rows += self.measures.feed((line,))
                    if len(self._rows) >= ROWS_PER_GROUP:
                        self._flush_rows()

    # ---- the end ----

    def close(self) -> None:
        """Complete the record; `failure` says why if that is impossible."""
        if self._is_closed:
            return
        self._is_closed = True
        self._rows += self.measures.close()
        with suppress(RunFailed), self._keeping_failure():
            self._complete()
        self._close_files()

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
            {  # JSON has no NaN
                key: None if isinstance(value, float) and not isfinite(value) else value
                for key, value in summary.items()
            },
        )

    def _close_files(self) -> None:
        # on a full disk, closing fails: the files still buffer what could not be written
        for file in ("_journal", "_pushes"):
            if (opened := getattr(self, file, None)) is not None:
                with suppress(OSError):
                    opened.close()

    @contextmanager
    def _keeping_failure(self) -> Iterator[None]:
        """Store the first failure in `failure`; raise all."""
        try:
            with writable(self.folder):
                yield
        except RunFailed as error:
            self.failure = self.failure or str(error)
            raise


@contextmanager
def writable(folder: Path) -> Iterator[None]:
    """Turn an `OSError` while a record is written, such as a full disk, into a `RunFailed`."""
    try:
        yield
    except OSError as error:
        reason = " ".join((error.strerror or str(error)).split())
        raise RunFailed(
            f"its record cannot be written: {error.filename or folder}: {reason}."
        ) from error


def environment() -> dict[str, Any]:
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


def folder_name(output: Location, name: str, kind: str) -> Path:
    """Choose the folder `OUTPUT/NAME/TIME-KIND-ID`, or a copy of its URI, without creating it."""
    stamp = datetime.now().strftime(STAMP)
    plain = re.sub(r"[^A-Za-z0-9=.]+", "-", kind).strip("-")
    # the id distinguishes runs of the same second
    folder = f"{stamp}-{short(plain)}-{uuid4().hex[:4]}"
    return folder_of(join(experiment_folder(output, name), folder))


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; raise `ConfigError` on failure."""
    with written(folder, "output"):
        folder.mkdir(parents=True)


@cache
def schema_of(row: type) -> pa.Schema:
    """Return the Arrow schema of a class whose fields are str, int or float, each perhaps None."""
    kinds = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(row).items()}
    return pa.schema([(name, _TYPES[kind.__name__]) for name, (kind, *_) in kinds.items()])


def table_of(columns: Columns) -> pa.Table:
    schema = schema_of(PushRow)
    arrays = list(map(pa.array, columns.values(), schema.types))
    return pa.Table.from_arrays(arrays, schema=schema)


def evaluations_table(measures: Measures) -> pa.Table:
    """Return `EVALUATION_COLUMNS` and a column for each metric, NaN where it is missing."""
    evaluations, columns = measures.evaluations, dict[str, pa.Array]()
    for name, kind in EVALUATION_COLUMNS.items():
        columns[name] = pa.array([getattr(evaluation, name) for evaluation in evaluations], kind)
    for name in measures.metrics:
        values = [float(evaluation.metrics.get(name, nan)) for evaluation in evaluations]
        columns[name] = pa.array(values, pa.float64())
    return pa.table(columns)


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    with completed(path) as new:
        new.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
