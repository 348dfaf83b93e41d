"""Whether a record can be read: damage is found before a report is half written."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from raysync.core.journal import read_header
from raysync.record.reader import RunRecord, legible
from raysync.record.rows import PushRow
from raysync.record.sweeps import SweepRecord, load_sweep
from raysync.record.writer import schema_of


def check(record: RunRecord) -> None:
    """Read what a report needs of a record, the frames of pushes but for their contents.

    Raises:
        ConfigError: a part is missing or damaged, or a newer raysync wrote it.
    """
    with legible(record.path), (record.path / "journal.jsonl").open(encoding="utf-8") as file:
        read_header(file.readline())
    for part in ("config", "summary", "evaluations", "environment"):
        getattr(record, part)
    if record.complete:
        with legible(record.path, "pushes"):
            if missing := set(schema_of(PushRow).names) - set(
                pq.read_schema(record.path / "pushes.parquet").names
            ):
                raise ValueError(f"there is no column {min(missing)}")


def whole_sweep(path: Path) -> SweepRecord:
    """A sweep whose experiment and table can be read.

    Raises:
        ConfigError: there is none, it has no table yet, or it is damaged.
    """
    sweep = load_sweep(path)
    for part in ("experiment", "table"):
        getattr(sweep, part)
    return sweep
