"""Check the files of a record, other than the journal, once as they are read: what a reader may
rely on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_type_hints

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysync.config.bounded_file import open_plain, read_text
from raysync.core.metrics import ACCURACY, LOSS
from raysync.core.structs import LONGEST_S, is_native
from raysync.record.writer import MARKED, schema_of

MOST_BYTES = 1 << 24
"""The largest JSON file that is read: ten times that of a run with ten thousand workers."""
MOST_PARTS, MOST_COLUMNS = 100_000, 10_000
"""The most parts of anything that the description of a table lists (10,000 rows of pushes are
one), and the most columns."""
SMALL_BYTES = 1 << 28
"""The size up to which a table, and a column of texts, may be any number of times its file's."""
MOST_RATIO = 100
"""The largest size of a larger table, in sizes of its file; a repeated row takes no room there."""
CODECS = ("SNAPPY", "UNCOMPRESSED")
"""How raysync's tables are packed: at best to a twentieth."""
MAY_BE_NAN = {"loss"}
"""The columns of pushes that can be NaN, because the model diverged."""


class _Switch(msgspec.Struct):
    at_s: float
    to: str
    why: str
    first_push_s: float | None = None


class _WorkerSummary(msgspec.Struct):
    id: str
    group: str
    pushes: int
    dropped: int
    samples: int
    busy_s: float
    wait_s: float


class _Bottleneck(msgspec.Struct):
    kind: str
    what: str
    without_s: float | None
    change: str | None
    change_s: float | None


class Summary(msgspec.Struct, kw_only=True):
    """The keys of `summary.json`, and others. Numbers can be null: JSON has no word for NaN."""

    status: str
    error: str
    faults_without_effect: list[str] = []
    samples: int
    pushes: int
    updates: int
    dropped: int
    lead_max: int = 0
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
    per_worker: list[_WorkerSummary] = []
    bottleneck: _Bottleneck | None = None
    checkpoints: int = 0
    resumptions: int = 0
    away_s: float = 0.0
    lost_s: float = 0.0
    lost_pushes: int = 0


class _UserCode(msgspec.Struct):
    sha256: str
    task_sha256: str | None
    paradigm_sha256: str | None
    files: list[str]
    commit: str | None = None
    dirty: bool | None = None


class Environment(msgspec.Struct):
    """The keys of `environment.json`, and others."""

    command: list[str] = []
    python: str = ""
    platform: str = ""
    host: str = ""
    pid: int | None = None
    packages: dict[str, str | None] = {}
    started: str = ""
    comparison: str = ""
    made: dict[str, Any] = {}
    places: dict[str, Any] = {}
    servers: dict[str, Any] = {}
    user_code: _UserCode | None = None


def mapping_in(path: Path, schema: type[msgspec.Struct]) -> dict[str, Any]:
    """Read the mapping in a JSON file.

    Raises:
        ValueError: the file cannot be read, or its contents do not match the schema.
    """
    try:
        data = json.loads(read_text(path, MOST_BYTES))
    except RecursionError as error:
        raise ValueError("its lists are nested too deeply") from error
    return checked(data, schema)


def checked(data: Any, schema: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the data as a dict if it matches the schema.

    Raises:
        ValueError: it does not.
    """
    if not (type(data) is dict and is_native(data)):
        raise ValueError("must be a mapping with at most 20 levels and numbers of 64 bits")
    try:
        msgspec.convert(data, schema)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
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
    table = table_in(path)
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
    table = table_in(path)
    for name, kind in MARKED.items():
        _check_column(table, name, kind)
    metrics = [name for name in table.column_names if name not in MARKED]
    for name in dict.fromkeys((LOSS, *metrics)):
        _check_column(table, name, pa.float64(), may_be_nan=True)
    frame: pd.DataFrame = table.to_pandas()
    return frame


def table_in(path: Path) -> pa.Table:
    """Read a table that raysync has written: of numbers and texts, in bounded memory.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such table.
        pa.ArrowException: the same.
    """
    with opened_table(path) as file:
        most_bytes = max(SMALL_BYTES, MOST_RATIO * path.stat().st_size)
        _check_size(file, most_bytes)
        # encoded, a text of many rows is there once; `_plain` looks how large all of them would be
        texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
        table = pq.ParquetFile(path, read_dictionary=texts).read()
    table.validate(full=True)
    for at, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(at, table.field(at).name, _plain(column, most_bytes))
    return table


@contextmanager
def opened_table(path: Path) -> Iterator[pq.ParquetFile]:
    """Give a table of which only the columns' names and types, and the sizes, have been read.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no table, or one of too many columns.
    """
    with (
        open_plain(path) as source,
        pq.ParquetFile(source, thrift_container_size_limit=MOST_PARTS) as file,
    ):
        if file.metadata.num_columns > MOST_COLUMNS:
            raise ValueError(f"it has more than {MOST_COLUMNS:,} columns")
        yield file


def _check_size(file: pq.ParquetFile, most: int) -> None:
    """Refuse what raysync does not write, and what would be very much larger than its file."""
    for field in file.schema_arrow:
        kind = field.type
        if not (_is_text(kind) or pa.types.is_primitive(kind) or pa.types.is_null(kind)):
            raise ValueError(f"column {field.name}: {field.type}, neither numbers nor texts")
    data = file.metadata
    for group in range(data.num_row_groups):
        for column in range(data.num_columns):
            if (codec := data.row_group(group).column(column).compression) not in CODECS:
                raise ValueError(f"it is packed by {codec}, not by {' or '.join(CODECS)}")
    if data.num_rows * data.num_columns * 8 > most:
        raise ValueError(f"{data.num_rows:,} rows are too many for a file of its size")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _plain(column: pa.ChunkedArray, most: int) -> pa.ChunkedArray:
    """Return a column of texts, each of which is there once so far, as such texts.

    Raises:
        ValueError: they would be too large.
    """
    size = sum(
        pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() or 0
        for chunk in column.chunks
    )
    if size > most:
        raise ValueError(f"{size:,} bytes of repeated text are too many for a file of its size")
    return column.cast(column.type.value_type)


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
