"""Writing a record while the run goes on.

`journal.jsonl` is the truth: flushed with every batch of lines, so a run that is killed leaves a
readable record up to that moment. Everything else can be made of it again, and has its name only
once it is complete: a disk that is full leaves no half of a file that hides the journal.
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
from math import isfinite
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from raysync.config.masking import masked
from raysync.core.journal import Evaluation, Line, encode, header
from raysync.core.paradigm import AnyParadigm
from raysync.errors import ConfigError, RunFailed
from raysync.record.measures import Measures
from raysync.record.rows import PushRow
from raysync.record.storage import Place, is_uri, join, new_copy

ROWS_PER_GROUP = 10_000
NEW = ".new"
"""Behind the name of a file that is not complete."""
PUSHES = "pushes.parquet"
PACKAGES = ("raysync", "ray", "torch", "torchvision", "numpy", "pandas")
_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}


def schema_of(row: type) -> pa.Schema:
    """The Arrow schema of a dataclass of str, int and float, each possibly with None."""
    return pa.schema(
        [(field.name, _TYPES[str(field.type).removesuffix(" | None")]) for field in fields(row)]
    )


def folder_name(output: Place, name: str, kind: str) -> Path:
    """`OUTPUT/NAME/TIME-KIND-ID`, not made yet; behind a URI, a copy of it. The id keeps runs of
    the same second apart.
    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    plain = re.sub(r"[^A-Za-z0-9=.]+", "-", kind).strip("-")
    place = join(output, name, f"{stamp}-{plain}-{uuid4().hex[:4]}")
    return Path(place).expanduser() if not is_uri(place) else new_copy(str(place))


def make_folder(folder: Path) -> None:
    """Make it, with those above it.

    Raises:
        ConfigError: that is not allowed there.
    """
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"output: {folder}: cannot be made ({error.strerror}).") from error


def environment() -> dict[str, Any]:
    """Where a run took place."""
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
    """A new file to write, which gets its name, in place of what has it, once the `with` block has
    ended well.
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
    """Tell in a line what a disk complains of while a record is written to it.

    Raises:
        RunFailed: the disk is full, say, or the folder is gone.
    """
    try:
        yield
    except OSError as error:
        reason = " ".join((error.strerror or str(error)).split())
        raise RunFailed(
            f"its record cannot be written: {error.filename or folder}: {reason}."
        ) from error


class RecordWriter:
    """Writes one record. Use it as a context manager: leaving it, however, completes what can be
    completed.

    Where the disk is full, or the folder is gone, the first write that fails raises `RunFailed`;
    later ones only feed the measures.
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
            folder: exists and is empty.
            config_yaml: the resolved experiment.
            paradigm: fresh; for the journal's header.
            measures: is fed with every line that is written.
            about: what `summary.json` says beside the measures.
            began: when the run was asked for; `wall_seconds` counts from here to the end of the
                record.
            places: actor -> where it ran; for `environment.json`.

        Raises:
            RunFailed: nothing can be written there.
        """
        self.folder = folder
        self.measures = measures
        self.failure = ""
        """Why the record is not complete, once that is clear."""
        self._about = about
        self._began = began
        self._rows: list[PushRow] = []
        self._closed = False
        with self._told():
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
        with self._told():
            self._journal.writelines(texts)
            self._journal.flush()
            if not os.fstat(self._journal.fileno()).st_nlink:  # what is written to it goes nowhere
                raise FileNotFoundError(
                    ENOENT, "it was removed", str(self.folder / "journal.jsonl")
                )
            if len(self._rows) >= ROWS_PER_GROUP:
                self._flush_rows()

    def close(self) -> None:
        """Complete the record; `failure` says if that cannot be."""
        if self._closed:
            return
        self._closed = True
        self._rows.extend(self.measures.close(self.measures.now))
        with suppress(RunFailed), self._told():
            self._complete()
        with suppress(OSError):  # of a disk that is full: both still hold what they could not write
            self._journal.close()
        with suppress(OSError):
            self._pushes.close()

    def _complete(self) -> None:
        self._journal.close()
        self._flush_rows()
        self._pushes.close()
        (self.folder / f"{PUSHES}{NEW}").replace(self.folder / PUSHES)
        table = pa.Table.from_pylist(
            [asdict(one) for one in self.measures.evaluations], schema_of(Evaluation)
        )
        with completed(self.folder / "evaluations.parquet") as new:
            pq.write_table(table, new)
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
    def _told(self) -> Iterator[None]:
        """A failure is kept, too; the first one has the reason."""
        try:
            with writable(self.folder):
                yield
        except RunFailed as error:
            self.failure = self.failure or str(error)
            raise


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    with completed(path) as new:
        new.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
