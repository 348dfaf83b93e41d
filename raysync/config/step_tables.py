"""Tables of step times, as CSV (also with semicolons or tabs) or parquet.

    wide   a column a rank and a row a step; a column `step`, if there is one, numbers the rows
    long   columns that name the rank, the step and its duration, in any order of rows

Each rank keeps its own steps, so correlations between ranks in one step (the same batch, a slow
node) stay: a synchronous round takes the largest number of a row.
"""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raysync.config.bounded_file import PARQUET, read_bytes, read_text, table_suffix
from raysync.config.durations import Steps, by_number
from raysync.config.table_columns import (
    InputColumn,
    is_counter,
    listed,
    of_kind,
    parse_title,
    ranks_of,
    titles_of,
)
from raysync.core.structs import LONGEST_S
from raysync.errors import ConfigError

LARGEST_BYTES = 400_000_000
MOST_RANKS = 10_000
LARGEST = 1e18  # `LONGEST_S` in microseconds
MOST_CELLS = 50_000_000
LONG = "worker, step, seconds (or rank, host, ...; iteration, ...; duration_ms, ...)"
# numbers with a decimal comma, or point
COMMA, POINT = (rf"([-+]?\d*){sign}(\d+(?:[eE][-+]?\d+)?)" for sign in (",", r"\."))
NUMBERED = {"epoch": "an epoch", "step": "a step"}  # the columns that number the rows


@dataclass(frozen=True)
class StepTable:
    """The ranks' step times in a table."""

    steps: Steps
    left_out: tuple[str, ...]  # the columns beside the ranks' and `step`
    has_unit: bool  # a column's name has the unit of the durations


def read_table(path: Path) -> StepTable:
    """Read a table of step times.

    In a long table ranks can have different numbers of steps; they are sorted by name, `rank2`
    before `rank10`.

    Raises:
        ValueError: the table is unreadable or ambiguous, or a step is missing, repeated or invalid.
            It names the file, and the column or line (of parquet, the row).
    """
    try:
        cells = _parquet(path) if table_suffix(path) == PARQUET else _csv(path)
        if cells.empty:
            raise ValueError("it holds no step times")
        columns = [parse_title(title) for title in cells.columns.tolist()]
        kinds = {column.kind for column in columns}
        is_long = "rank names" in kinds and (
            "seconds" in kinds or ("step" in kinds and "rank" not in kinds)
        )
        return _long(cells, columns) if is_long else _wide(cells, columns)
    except ConfigError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


# ---- the cells: texts, by the number of their line or row, and by the title of their column ----


def _csv(path: Path) -> pd.DataFrame:
    text = read_text(path, LARGEST_BYTES)
    header = re.search(r"^.*\S.*$", text, re.M)
    if header is None:
        raise ValueError("it is empty; its first line must name the columns")
    # only the titles show the separator: numbers can have a decimal comma
    separator = next((sign for sign in "\t;" if sign in header[0]), ",")
    _check_size(header[0].count(separator) + 1, text.count(separator) + text.count("\n"))
    first = text.count("\n", 0, header.start()) + 1
    cells = _split(text[header.start() :], separator, first)
    titles = cells.iloc[0].tolist()
    if not any(math.isnan(_parse_number(title)) for title in titles):
        raise ValueError(f"line {first}: it must name the columns; got numbers")
    table = cells.iloc[1:].set_axis(_with_index_title(titles), axis="columns")
    return table if separator == "," else _with_points(table)


def _split(text: str, separator: str, first: int) -> pd.DataFrame:
    """Split CSV, which begins with the titles at line `first`, into cells without empty lines."""
    try:
        cells = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            header=None,
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,
            skipinitialspace=True,
        )
    except pd.errors.ParserError as error:
        if found := re.search(r"Expected (\d+) fields in line (\d+), saw (\d+)", str(error)):
            columns, line, values = map(int, found.groups())
            raise ValueError(
                f"line {line + first - 1}: {values} values, but there are {columns} columns"
            ) from error
        raise ValueError(f"it is no CSV ({error})") from error
    cells.index = pd.RangeIndex(first, first + len(cells), name="line")
    cells = pd.DataFrame({column: texts.str.strip() for column, texts in cells.items()})
    return cells[(cells != "").any(axis=1)]


def _parquet(path: Path) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = read_bytes(path, LARGEST_BYTES)
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        # a few bytes can stand for any number of rows
        _check_size(file.metadata.num_columns, file.metadata.num_columns * file.metadata.num_rows)
        table = file.read()
        texts = [cells.cast(pa.string()).fill_null("").to_pylist() for cells in table.columns]
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it is no parquet ({error})") from error
    titles = _with_index_title([title.strip() for title in table.column_names])
    rows = pd.RangeIndex(1, table.num_rows + 1, name="row")
    return pd.DataFrame(dict(zip(titles, texts, strict=True)), rows, dtype=object)


def _check_size(columns: int, cells: int) -> None:
    if columns > MOST_RANKS:
        raise ValueError(f"it has {columns:,} columns; at most {MOST_RANKS:,} are read")
    if cells > MOST_CELLS:
        raise ValueError(f"it has more than {MOST_CELLS:,} cells, the most that are read")


def _with_index_title(titles: list[str]) -> list[str]:
    """Return the titles, with one for the first column if pandas wrote it as an index."""
    _check_size(len(titles), 0)
    if len(titles) > 1 and not titles[0]:
        has_step = of_kind([parse_title(title) for title in titles], "step")
        titles = ["index" if has_step else "step", *titles[1:]]
    if "" in titles:
        raise ValueError("each column needs the name of a worker in the first line")
    _check_distinct(titles)
    return titles


def _check_distinct(names: Sequence[str]) -> None:
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ValueError(f"the column {name!r} is there twice")


def _with_points(table: pd.DataFrame) -> pd.DataFrame:
    """Replace decimal commas by points; refuse a table with both."""
    comma, point = (
        table.columns[table.apply(lambda cells, form=form: cells.str.fullmatch(form).any())]
        for form in (COMMA, POINT)
    )
    if len(comma) and len(point):
        raise ValueError(
            f"numbers of the column {point[0]!r} have a decimal point, and of {comma[0]!r} a comma"
        )
    return table.replace(f"^{COMMA}$", r"\1.\2", regex=True)


def _parse_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _parse_numbers(cells: pd.DataFrame | pd.Series[str]) -> NDArray[np.float64]:
    texts = cells.to_numpy(dtype=object)
    try:
        numbers = texts.astype(float)
    except ValueError:
        numbers = np.vectorize(_parse_number, otypes=[float])(texts)
    return cast(NDArray[np.float64], numbers)


def _place(rows: pd.DataFrame | pd.Series[str], at: int = 0) -> str:
    """Return "line 7" or "row 7"."""
    return f"{rows.index.name} {rows.index[at]}"


# ---- the two forms ----


def _wide(cells: pd.DataFrame, columns: Sequence[InputColumn]) -> StepTable:
    values = _parse_numbers(cells)
    values[~(abs(values) <= LARGEST)] = math.nan  # sums of larger ones would not be finite
    ranks = ranks_of(columns, pd.DataFrame(values, columns=titles_of(columns)))
    if not ranks:
        raise ValueError(
            "each column needs the name of a worker in the first line, or the columns of the long"
            f" form: {LONG}; got {listed(titles_of(columns))}"
        )
    names, titles = [rank.name for rank in ranks], titles_of(ranks)
    _check_distinct(names)
    rows = pd.concat([_step_numbers(cells, columns)] * len(ranks)).assign(
        rank=pd.Categorical(names).repeat(len(cells)), cell=cells[titles].to_numpy().ravel("F")
    )
    known = {*titles, "step"}
    left_out = tuple(title for title in titles_of(columns) if title not in known)
    scale = ranks[0].scale
    return StepTable(_step_times(rows, columns, scale), left_out, scale is not None)


def _long(cells: pd.DataFrame, columns: Sequence[InputColumn]) -> StepTable:
    if not of_kind(columns, "step"):
        raise ValueError(f"no column 'step'; the long form has {LONG}")
    durations = of_kind(columns, "seconds")
    exact = [column for column in durations if column.title.lower() == "seconds"]
    if len(exact or durations) != 1:
        raise ValueError(
            "one column must have the steps' durations, best called 'seconds'; got"
            f" {listed(titles_of(durations)) or 'none'}"
        )
    [duration] = exact or durations
    rows = _step_numbers(cells, columns).assign(
        rank=_ranks(cells, columns).astype("category"), cell=cells[duration.title]
    )
    if (count := rows["rank"].nunique()) > MOST_RANKS:
        raise ValueError(f"it has {count:,} workers; at most {MOST_RANKS:,} workers are read")
    steps = _step_times(rows, columns, duration.scale)
    if all(is_counter(seconds) for seconds in steps.values()):
        raise ValueError(
            f"the column {duration.title!r} has no durations: in every rank it only rises or only"
            " falls, as a counter or a clock does"
        )
    ordered = {rank: steps[rank] for rank in sorted(steps, key=by_number)}
    return StepTable(ordered, (), duration.scale is not None)


def _ranks(cells: pd.DataFrame, columns: Sequence[InputColumn]) -> pd.Series[str]:
    """Return the rank of each row.

    Of several columns, the first one that distinguishes as many ranks as all of them names the
    rank, otherwise all do (a host, and the GPU in it).
    """
    naming = cells[titles_of(of_kind(columns, "rank names"))]
    if (unnamed := (naming == "").any(axis=1)).any():
        raise ValueError(f"{_place(naming[unnamed])}: no worker")
    count = len(naming.drop_duplicates())
    for _, names in naming.items():
        if names.nunique() == count:
            return names
    return pd.Series(map(" ".join, naming.to_numpy()), naming.index)


def _step_numbers(cells: pd.DataFrame, columns: Sequence[InputColumn]) -> pd.DataFrame:
    """Return each row's epoch and step; without a column `step`, 0 and the row's number."""
    rows = pd.DataFrame({"epoch": 0.0, "step": np.arange(len(cells)) * 1.0}, cells.index)
    steps = of_kind(columns, "step")[:1]
    for column in (*steps, *of_kind(columns, "epoch")[: len(steps)]):
        rows[column.kind] = _parse_numbers(cells[column.title])
        wrong = cells[column.title][rows[column.kind] % 1 != 0]  # also NaN and infinity
        if len(wrong):
            raise ValueError(
                f"{_place(wrong)}: {NUMBERED[column.kind]} must be a whole number; got"
                f" {shortened(wrong.iloc[0])}"
            )
    return rows


# ---- the steps ----


def _step_times(rows: pd.DataFrame, columns: Sequence[InputColumn], scale: float | None) -> Steps:
    """Return the seconds of each rank's steps.

    Args:
        rows: `rank`, `epoch`, `step`, and the `cell` of the duration, by line.
        scale: the seconds of the durations' unit.
    """
    rows = rows.assign(seconds=_parse_numbers(rows["cell"]) * (scale or 1.0))
    _check_durations(rows)
    rows = rows.sort_values([*NUMBERED], kind="stable")
    _check_step_numbers(rows, [*titles_of(of_kind(columns, "step")), "step"][0])
    by_rank = rows.groupby("rank", sort=False, observed=True)["seconds"]
    return {str(rank): tuple(seconds.tolist()) for rank, seconds in by_rank}


def _check_durations(rows: pd.DataFrame) -> None:
    wrong = rows[~rows["seconds"].between(0, LONGEST_S, inclusive="right")]
    if wrong.empty:
        return
    line, text, seconds = _place(wrong), wrong["cell"].iloc[0], wrong["seconds"].iloc[0]
    why = f"a step lasts {seconds:g} s; it must be above 0 and at most {LONGEST_S:g} s"
    if not text:
        why = "no seconds; a step is missing"
    elif math.isnan(seconds) and text.lower() != "nan":
        why = f"{shortened(text)} is no number of seconds"
    raise ValueError(f"{line}: worker {wrong['rank'].iloc[0]!r}: {why}")


def _check_step_numbers(rows: pd.DataFrame, step: str) -> None:
    """Refuse steps that are given twice or missing, in rows sorted by epoch and step."""
    numbers = rows[[*NUMBERED]]
    order = numbers.drop_duplicates()  # the steps of all ranks
    steps, change = order["step"].to_numpy(), order.diff()
    follows = (change["step"] == 1) & change["epoch"].isin([0, 1])
    follows |= (change["epoch"] == 1) & (order["step"] == steps[0])  # each epoch starts over
    place = numbers.groupby([*NUMBERED]).ngroup().to_numpy()
    expected = rows.groupby("rank", observed=True).cumcount().to_numpy()
    is_repeated = rows.duplicated(["rank", *NUMBERED]).to_numpy()
    is_wrong = is_repeated | (place != expected) | (~follows.to_numpy()[place] & (place > 0))
    if not is_wrong.any():
        return
    at = int(is_wrong.argmax())
    rank, number = rows["rank"].iloc[at], steps[place[at]]
    given = f"{_place(rows, at)}: {step} {number:.0f} of worker {rank!r}"
    if is_repeated[at]:
        first = rows[(place == place[at]) & (rows["rank"] == rank)]
        raise ValueError(f"{given} is given twice, first in {_place(first)}")
    is_gap = place[at] == expected[at]  # all ranks lack the step
    missing = steps[place[at] - 1] + 1 if is_gap else steps[expected[at]]
    raise ValueError(f"{given}, but its {step} {missing:.0f} is missing")
