"""What a reader may rely on in the files of a record, beside the journal: checked once, as they are
read.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, ValidationError

from raysync.core.journal import LONGEST_S, is_mapping
from raysync.record.writer import schema_of

MAY_BE_NAN = {"loss", "accuracy"}
"""The columns in which a model that diverged leaves NaN."""


class _Loose(BaseModel):
    """What is not listed may be there, too; what is listed is of that type."""

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


class Summary(_Loose):
    """`summary.json`. Numbers may be null: JSON has no word for NaN."""

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
    paradigm_parameters: dict[str, Any] = {}
    switches: list[_Switch] = []
    per_worker: list[_Worker] = []


class Environment(_Loose):
    """`environment.json`."""

    command: list[str] = []
    python: str = ""
    platform: str = ""
    host: str = ""
    pid: int | None = None
    packages: dict[str, str | None] = {}
    started: str = ""
    places: dict[str, Any] = {}


def mapping_in(path: Path, schema: type[BaseModel]) -> dict[str, Any]:
    """The mapping in a JSON file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not what the schema says.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("its lists are nested too deeply") from error
    return checked(data, schema)


def checked(data: Any, schema: type[BaseModel]) -> dict[str, Any]:
    """The data itself, if it is what the schema says.

    Raises:
        ValueError: it is not.
    """
    if not is_mapping(data):
        raise ValueError("a mapping is wanted, of no more than 20 levels and numbers of 64 bits")
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
        raise ValueError(f"column {name}: no number, or one that is too large, in some rows")


def frame_in(path: Path, row: type) -> pd.DataFrame:
    """The frame in a Parquet file of such rows.

    Raises:
        OSError: it cannot be read.
        ValueError: columns are missing, or hold something else.
    """
    table = pq.ParquetFile(path).read()
    table.validate(full=True)
    wanted = schema_of(row)
    for each in fields(row):
        if each.name not in table.column_names:
            raise ValueError(f"there is no column {each.name}")
        column = table.column(each.name)
        if column.type != wanted.field(each.name).type:
            raise ValueError(
                f"column {each.name}: {column.type}, not {wanted.field(each.name).type}"
            )
        if column.null_count and not str(each.type).endswith("| None"):
            raise ValueError(f"column {each.name}: there is none in some rows")
        if pa.types.is_floating(column.type) and each.name not in MAY_BE_NAN:
            _check_finite(each.name, column)
    frame: pd.DataFrame = table.to_pandas()
    return frame
