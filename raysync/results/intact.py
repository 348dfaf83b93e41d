"""Whether a record can be read: damage is found before a report is half written."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq

from raysync.core.journal import JOURNAL_SCHEMA
from raysync.errors import ConfigError, RaysyncError
from raysync.record.reader import RunRecord
from raysync.record.rows import PushRow
from raysync.record.sweeps import SweepRecord, load_sweep
from raysync.record.writer import schema_of

UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError, RaysyncError)
"""What reading a damaged file can end in; pyarrow's own errors are ValueErrors and OSErrors."""


def check(record: RunRecord) -> None:
    """Read what a report needs of a record, the frames of pushes but for their contents.

    Raises:
        ConfigError: a part is missing or damaged, or a newer raysync wrote it.
    """
    _check_header(record)
    parts = ["config", "summary", "evaluations", "environment"]
    for part in parts:
        try:
            getattr(record, part)
        except UNREADABLE as error:
            raise _damaged(record.path, part, error) from error
    if record.complete:
        try:
            missing = set(schema_of(PushRow).names) - set(pq.read_schema(record.path / "pushes.parquet").names)
        except UNREADABLE as error:
            raise _damaged(record.path, "pushes", error) from error
        if missing:
            raise ConfigError(f"{record.path}: damaged, or of another raysync: its pushes have no {min(missing)}.")


def whole_sweep(path: Path) -> SweepRecord:
    """A sweep whose experiment and table can be read.

    Raises:
        ConfigError: there is none, it has no table yet, or it is damaged.
    """
    sweep = load_sweep(path)
    for part in ("experiment", "table"):
        try:
            getattr(sweep, part)
        except UNREADABLE as error:
            raise _damaged(path, part, error) from error
    return sweep


def _check_header(record: RunRecord) -> None:
    try:
        with (record.path / "journal.jsonl").open(encoding="utf-8") as file:
            schema = json.loads(file.readline())["journal"]
    except UNREADABLE as error:
        raise ConfigError(f"{record.path}: damaged: its journal has no header.") from error
    if schema != JOURNAL_SCHEMA:
        newer = "a newer" if isinstance(schema, int) and schema > JOURNAL_SCHEMA else "another"
        raise ConfigError(f"{record.path}: {newer} raysync wrote it: its journal has schema {schema}, this one reads "
                          f"{JOURNAL_SCHEMA}.")


def _damaged(path: Path, part: str, error: Exception) -> ConfigError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ConfigError(f"{path}: its {part} cannot be read: damaged, or written by a newer raysync.\n({reason[:200]})")
