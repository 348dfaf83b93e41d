"""Write a record while the run goes on.

`journal.jsonl` is the truth: it is flushed with every batch of lines, so a run that is killed
leaves a readable record up to that moment. All other files can be derived from it again, and get
their names only once they are complete: a full disk leaves no half-written file that hides the
journal.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from datetime import datetime
from errno import ENOENT
from importlib.metadata import PackageNotFoundError, version
from math import isfinite, nan
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from raysync.config.secret_masking import masked
from raysync.core.journal import Evaluation, Line, encode, header
from raysync.core.metrics import RESERVED
from raysync.core.paradigm import AnyParadigm
from raysync.errors import ConfigError, RunFailed
from raysync.record.measures import Measures
from raysync.record.push_rows import PushRow
from raysync.record.storage import Location, is_uri, join, new_copy

ROWS_PER_GROUP = 10_000
NEW = ".new"
"""The suffix of a file that is not complete."""
PUSHES = "pushes.parquet"
MODEL_FILES = {"final": "model.safetensors", "best": "model-best.safetensors"}
"""Which model -> its file."""
PACKAGES = ("raysync", "ray", "torch", "torchvision", "numpy", "pandas")
_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
MARKED = {each.name: _TYPES[str(each.type)] for each in fields(Evaluation) if each.name in RESERVED}
"""Column of `evaluations.parquet` beside the metrics -> its type."""


def schema_of(row: type) -> pa.Schema:
    """Return the Arrow schema of a dataclass of str, int and float, each possibly with None."""
    return pa.schema(
        [(field.name, _TYPES[str(field.type).removesuffix(" | None")]) for field in fields(row)]
    )


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
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
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


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@contextmanager
def completed(path: Path) -> Iterator[Path]:
    """Give the path of a new file to write, which replaces the file at `path` once the `with` block
    has ended without an error.
    """
    new = path.with_name(path.name + NEW)
    try:
        yield new
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise


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
    ) -> None:
        """
        Args:
            folder: an empty folder that exists.
            config_yaml: the resolved experiment.
            paradigm: a fresh paradigm, for the journal's header.
            measures: the measures that take in every line that is written.
            about: the keys of `summary.json` beside the measures.
            began: when the run was requested; `wall_seconds` counts from there to the end of the
                record.
            places: actor -> where it ran; for `environment.json`.

        Raises:
            RunFailed: nothing can be written there.
        """
        self.folder = folder
        self.measures = measures
        self.failure = ""
        """Why the record cannot be completed; empty as long as it can."""
        self._about = about
        self._began = began
        self._rows: list[PushRow] = []
        self._closed = False
        with self._keeping_failure():
            with completed(folder / "config.yaml") as new:
                new.write_text(config_yaml, encoding="utf-8")
            _write_json(folder / "environment.json", environment() | {"places": places or {}})
            self._journal = (folder / "journal.jsonl").open("w", encoding="utf-8")
            self._journal.write(
                header(paradigm, measures.workload_samples, about=dict(about)) + "\n"
            )
            self._journal.flush()
            self._pushes = pq.ParquetWriter(folder / f"{PUSHES}{NEW}", schema_of(PushRow))

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, lines: Iterable[Line]) -> None:
        """Write lines of the journal, and the rows that they complete.

        Raises:
            RunFailed: they cannot be written.
        """
        texts = []
        for line in lines:
            texts.append(encode(line) + "\n")
            self._rows.extend(self.measures.feed(line))
        if self.failure:
            return
        with self._keeping_failure():
            self._journal.writelines(texts)
            self._journal.flush()
            if not os.fstat(self._journal.fileno()).st_nlink:  # it is open, but has no name
                raise FileNotFoundError(
                    ENOENT, "it was removed", str(self.folder / "journal.jsonl")
                )
            if len(self._rows) >= ROWS_PER_GROUP:
                self._flush_rows()

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
        self._rows.extend(self.measures.close(self.measures.now))
        with suppress(RunFailed), self._keeping_failure():
            self._complete()
        with suppress(OSError):  # on a full disk, both still hold what they could not write
            self._journal.close()
        with suppress(OSError):
            self._pushes.close()

    def _complete(self) -> None:
        self._journal.close()
        self._flush_rows()
        self._pushes.close()
        (self.folder / f"{PUSHES}{NEW}").replace(self.folder / PUSHES)
        with completed(self.folder / "evaluations.parquet") as new:
            pq.write_table(evaluations_table(self.measures), new)
        summary = {
            **self._about,
            **self.measures.summary(),
            "wall_seconds": (datetime.now() - self._began).total_seconds(),
        }
        _write_json(
            self.folder / "summary.json",
            {  # JSON has no word for NaN
                key: None if isinstance(value, float) and not isfinite(value) else value
                for key, value in summary.items()
            },
        )

    def _flush_rows(self) -> None:
        if self._rows:
            self._pushes.write_table(
                pa.Table.from_pylist([asdict(row) for row in self._rows], schema_of(PushRow))
            )
            self._rows = []

    @contextmanager
    def _keeping_failure(self) -> Iterator[None]:
        """Keep the first failure in `failure`, and raise each."""
        try:
            with writable(self.folder):
                yield
        except RunFailed as error:
            self.failure = self.failure or str(error)
            raise


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    with completed(path) as new:
        new.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
