"""Check the files of a record, other than the journal, as they are read."""

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
from raysync.record.follower import SwitchMeasures
from raysync.record.made_here import MAKER
from raysync.record.run_end import Kind
from raysync.record.writer import EVALUATION_COLUMNS, schema_of

MOST_BYTES = 1 << 24  # of a JSON file: ten times a run with ten thousand workers
MOST_PARTS, MOST_COLUMNS = 100_000, 10_000  # in a table's metadata; 10,000 pushes are one part
SMALL_BYTES = 1 << 28  # up to this size, a table or a column of texts may have any ratio
MOST_RATIO = 100  # size / file size of a larger table: a repeated row takes no room in the file
CODECS = ("SNAPPY", "UNCOMPRESSED")  # raysync's tables shrink to a twentieth at best
MAY_BE_NAN = {"loss"}  # columns of pushes, when the model diverged


class OtherSchemaError(ValueError):
    """A table that is whole, but has not the columns of this raysync."""


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
    computing_s: float | None = None  # records of earlier versions lack it


class Summary(msgspec.Struct, kw_only=True):
    """The checked keys of `summary.json`; a number can be null, as JSON has no NaN."""

    status: str
    error: str
    end: Kind | None = None
    ended_by: str = ""
    progress: float | None = None
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
    switches: list[SwitchMeasures] = []
    per_worker: list[_WorkerSummary] = []
    bottleneck: _Bottleneck | None = None
    lost_workers: int = 0
    worker_away_s: float = 0.0
    lost_servers: int = 0
    server_away_s: float = 0.0
    lost_evaluators: int = 0
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
    """The checked keys of `environment.json`."""

    command: list[str] = []
    python: str = ""
    platform: str = ""
    host: str = ""
    pid: int | None = None
    packages: dict[str, str | None] = {}
    started: str = ""
    requested: str = ""
    comparison: str = ""
    maker: dict[str, Any] = msgspec.field(default_factory=dict, name=MAKER)
    places: dict[str, Any] = {}
    servers: dict[str, Any] = {}
    user_code: _UserCode | None = None


def mapping_in(path: Path, schema: type[msgspec.Struct]) -> dict[str, Any]:
    """Read the mapping in a JSON file; raise `ValueError` if it does not match the schema."""
    try:
        data = json.loads(read_text(path, MOST_BYTES))
    except RecursionError as error:
        raise ValueError("its lists are nested too deeply") from error
    return checked(data, schema)


def checked(data: Any, schema: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the data as a dict; raise `ValueError` if it does not match the schema."""
    if not (type(data) is dict and is_native(data)):
        raise ValueError("must be a mapping with at most 20 levels and numbers of 64 bits")
    try:
        msgspec.convert(data, schema)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    return dict(data)


def frame_in(path: Path, row: type) -> pd.DataFrame:
    """Read a Parquet file with the columns of a row class; raise `ValueError` without these."""
    table = table_in(path)
    schema = schema_of(row)
    for name, hint in get_type_hints(row).items():
        is_optional = NoneType in get_args(hint)
        _check_column(table, name, schema.field(name).type, is_optional=is_optional)
    return pd.DataFrame(table.to_pandas())


def evaluations_in(path: Path) -> pd.DataFrame:
    """Read `evaluations.parquet`: `EVALUATION_COLUMNS` and the metrics, among them `loss`."""
    table = table_in(path)
    for name, kind in EVALUATION_COLUMNS.items():
        _check_column(table, name, kind)
    metrics = [name for name in table.column_names if name not in EVALUATION_COLUMNS]
    for name in dict.fromkeys((LOSS, *metrics)):
        _check_column(table, name, pa.float64(), may_be_nan=True)
    return pd.DataFrame(table.to_pandas())


def _check_column(
    table: pa.Table,
    name: str,
    expected: pa.DataType,
    *,
    is_optional: bool = False,
    may_be_nan: bool = False,
) -> None:
    if name not in table.column_names:
        raise OtherSchemaError(f"there is no column {name}")
    column = table.column(name)
    if column.type != expected:
        raise OtherSchemaError(f"column {name}: {column.type}, not {expected}")
    if column.null_count and not is_optional:
        raise ValueError(f"column {name}: some rows have no value")
    if pa.types.is_floating(column.type) and not may_be_nan and name not in MAY_BE_NAN:
        most = pc.max(pc.abs(column)).as_py() or 0.0  # None: the column has no numbers
        if pc.any(pc.is_nan(column)).as_py() or most > LONGEST_S:
            raise ValueError(f"column {name}: some rows have NaN, or a number that is too large")


def table_in(path: Path) -> pa.Table:
    """Read a table of numbers and texts, in bounded memory.

    Raises `ValueError` or `pa.ArrowException` if raysync has not written it.
    """
    with opened_table(path) as file:
        most_bytes = max(SMALL_BYTES, MOST_RATIO * path.stat().st_size)
        _check_size(file, most_bytes)
        # encoded, a repeated text is there once; `_decoded` computes the full size
        texts = [field.name for field in file.schema_arrow if _is_text(field.type)]
        table = pq.ParquetFile(path, read_dictionary=texts).read()
    table.validate(full=True)
    for index, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(index, table.field(index).name, _decoded(column, most_bytes))
    return table


@contextmanager
def opened_table(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a table, and read only its columns' names, types and sizes."""
    with (
        open_plain(path) as source,
        pq.ParquetFile(source, thrift_container_size_limit=MOST_PARTS) as file,
    ):
        if file.metadata.num_columns > MOST_COLUMNS:
            raise ValueError(f"it has more than {MOST_COLUMNS:,} columns")
        yield file


def _check_size(file: pq.ParquetFile, most: int) -> None:
    """Refuse types and codecs that raysync does not write, and sizes out of proportion."""
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


def _decoded(column: pa.ChunkedArray, most: int) -> pa.ChunkedArray:
    """Decode a column of dictionary-encoded texts; raise `ValueError` if it is too large."""
    size = sum(
        pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() or 0
        for chunk in column.chunks
    )
    if size > most:
        raise ValueError(f"{size:,} bytes of repeated text are too many for a file of its size")
    return column.cast(column.type.value_type)
