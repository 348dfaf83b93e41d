"""Check the files of a record, other than the journal, once as they are read: what a reader may
rely on.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from raysync.core.journal import LONGEST_S, is_mapping
from raysync.core.metrics import ACCURACY, LOSS
from raysync.record.older import STANDS_FOR, ZERO
from raysync.record.writer import MARKED, schema_of

MAY_BE_NAN = {"loss"}
"""The columns of pushes that can be NaN, because the model diverged."""


class _Loose(BaseModel):
    """Keys that are listed have that type; other keys are allowed."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Switch(_Loose):
    at_s: float
    to: str
    why: str
    first_push_s: float | None = None


class _Worker(_Loose):
    id: str
    group: str
    pushes: int
    dropped: int
    samples: int
    busy_s: float
    wait_s: float


class _Bottleneck(_Loose):
    kind: str
    what: str
    without_s: float | None
    change: str | None
    change_s: float | None


class Summary(_Loose):
    """The keys of `summary.json`. Numbers can be null: JSON has no word for NaN."""

    status: str
    error: str
    faults_without_effect: list[str] = []
    samples: int
    pushes: int
    updates: int
    dropped: int
    seconds: float | None
    profile: str | None = None
    parameters: int | None = None
    workers: int | None = None
    seed: int | None = None
    tokens: bool = False
    metric: str = ACCURACY.name
    metric_mode: Literal["max", "min"] = ACCURACY.mode
    target: dict[str, Any] | None = None
    batch_metrics: list[str] = []
    paradigm_parameters: dict[str, Any] = {}
    switches: list[_Switch] = []
    per_worker: list[_Worker] = []
    bottleneck: _Bottleneck | None = None
    checkpoints: int = 0
    resumptions: int = 0
    away_s: float = 0.0
    lost_s: float = 0.0
    lost_pushes: int = 0


class _UserCode(_Loose):
    sha256: str
    task_sha256: str | None
    paradigm_sha256: str | None
    files: list[str]
    commit: str | None = None
    dirty: bool | None = None


class Environment(_Loose):
    """The keys of `environment.json`."""

    command: list[str] = []
    python: str = ""
    platform: str = ""
    host: str = ""
    pid: int | None = None
    packages: dict[str, str | None] = {}
    started: str = ""
    comparison: str = ""
    places: dict[str, Any] = {}
    servers: dict[str, Any] = {}
    user_code: _UserCode | None = None


def mapping_in(path: Path, schema: type[BaseModel]) -> dict[str, Any]:
    """Read the mapping in a JSON file.

    Raises:
        OSError: the file cannot be read.
        ValueError: its contents do not match the schema.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("its lists are nested too deeply") from error
    return checked(data, schema)


def checked(data: Any, schema: type[BaseModel]) -> dict[str, Any]:
    """Return the data as a dict if it matches the schema.

    Raises:
        ValueError: it does not.
    """
    if not is_mapping(data):
        raise ValueError("must be a mapping with at most 20 levels and numbers of 64 bits")
    try:
        schema.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}, got {first['input']!r:.40}"
        ) from error
    return dict(data)


def _check_finite(name: str, column: pa.ChunkedArray) -> None:
    most = pc.max(pc.abs(column)).as_py()
    if pc.any(pc.is_nan(column)).as_py() or (most is not None and most > LONGEST_S):
        raise ValueError(f"column {name}: some rows have NaN, or a number that is too large")


def frame_in(path: Path, row: type) -> pd.DataFrame:
    """Read the frame in a Parquet file.

    Args:
        path: the file.
        row: the dataclass of its rows.

    Raises:
        OSError: the file cannot be read.
        ValueError: columns are missing, or hold something else.
    """
    table = _table_in(path)
    for name, stands_for in STANDS_FOR.items():
        if name not in table.column_names and stands_for in table.column_names:
            table = table.append_column(name, table.column(stands_for))
    for name in ZERO:
        if name not in table.column_names and "busy_s" in table.column_names:
            table = table.append_column(name, pa.array([0.0] * len(table), pa.float64()))
    schema = schema_of(row)
    for name, hint in get_type_hints(row).items():
        is_optional = NoneType in get_args(hint)
        _check_column(table, name, schema.field(name).type, is_optional=is_optional)
    frame: pd.DataFrame = table.to_pandas()
    return frame


def evaluations_in(path: Path) -> pd.DataFrame:
    """Read `evaluations.parquet`: the columns of `MARKED`, and metrics, of which one is `loss`.

    Raises:
        OSError: the file cannot be read.
        ValueError: columns are missing, or hold something else.
    """
    table = _table_in(path)
    for name, kind in MARKED.items():
        _check_column(table, name, kind)
    metrics = [name for name in table.column_names if name not in MARKED]
    for name in dict.fromkeys((LOSS, *metrics)):
        _check_column(table, name, pa.float64(), may_be_nan=True)
    frame: pd.DataFrame = table.to_pandas()
    return frame


def _table_in(path: Path) -> pa.Table:
    table = pq.ParquetFile(path).read()
    table.validate(full=True)
    return table


def _check_column(
    table: pa.Table,
    name: str,
    expected: pa.DataType,
    *,
    is_optional: bool = False,
    may_be_nan: bool = False,
) -> None:
    if name not in table.column_names:
        raise ValueError(f"there is no column {name}")
    column = table.column(name)
    if column.type != expected:
        raise ValueError(f"column {name}: {column.type}, not {expected}")
    if column.null_count and not is_optional:
        raise ValueError(f"column {name}: some rows have no value")
    if pa.types.is_floating(column.type) and not may_be_nan and name not in MAY_BE_NAN:
        _check_finite(name, column)
