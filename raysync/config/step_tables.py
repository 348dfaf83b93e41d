"""Tables of step times, as CSV (also with semicolons or tabs) or parquet.

    long   columns for the worker, the step and its seconds, in any order of rows; without a
           worker, the table is one rank
    wide   a column a rank and a row a step; a column `step`, if there is one, numbers the rows

Each rank keeps its own steps, so correlations between ranks in one step (the same batch, a slow
node) stay: a synchronous round takes the largest number of a row.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened

import numpy as np
import pandas as pd

from raysync.config.base import listed
from raysync.config.bounded_file import PACKED, PARQUET, read_bytes, read_text, table_suffix
from raysync.config.durations import Steps, by_number
from raysync.config.table_columns import (
    SECONDS,
    STEPS,
    ColumnTitles,
    Roles,
    option,
    parse_columns,
    roles_of,
)
from raysync.core.structs import LONGEST_S
from raysync.errors import ConfigError

LARGEST_BYTES = 400_000_000
MOST_RANKS = 10_000
MOST_CELLS = 50_000_000
NOTHING = ("", "nan", "NaN")  # cells without a value
# numbers with a decimal comma, or point
COMMA, POINT = (rf"([-+]?\d*){sign}(\d+(?:[eE][-+]?\d+)?)" for sign in (",", r"\."))
BOTH = "host,worker=local_rank"
NUMBERED = ["epoch", "step"]  # the columns that number the rows


@dataclass(frozen=True)
class StepTable:
    """The ranks' step times in a table."""

    steps: Steps
    unit: str  # the unit of the numbers: s, ms or us
    left_out: tuple[str, ...]  # the columns that have no role
    rows_left_out: int  # those without seconds that a column without a role fills


def read_table(path: Path, said: ColumnTitles | None = None, rank: str | None = None) -> StepTable:
    """Read a table of step times.

    In a long table ranks can have different numbers of steps; they are sorted by name, `rank2`
    before `rank10`.

    Args:
        path: of the file.
        said: what the user says of the columns.
        rank: the name of the rank in a table without workers; None: its file names it.

    Raises:
        ValueError: the table is unreadable or not understood, or a step is missing, repeated or
            invalid. It names the file, and the column or line (of parquet, the row).
    """
    try:
        cells = _parquet(path) if table_suffix(path) == PARQUET else _csv(path)
        if cells.empty:
            raise ValueError("it holds no step times")
        roles = roles_of([*cells], said or ColumnTitles(), rank or _stem(path))
        filled, left_out = _filled(cells, roles)
        steps = _step_times(_rows(filled, roles), roles)
        return StepTable(steps, roles.unit, left_out, len(cells) - len(filled))
    except ConfigError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_tables(paths: Sequence[Path], columns: str | None = None) -> StepTable:
    """Read several tables as one; a table without workers is one rank.

    Args:
        paths: of the files.
        columns: what the user says of the columns: `worker=host,seconds=took,unit=ms`.

    Raises:
        ValueError: see `read_table`; or a worker is in two of them.
    """
    said = ColumnTitles() if columns is None else parse_columns(columns)
    tables = [
        read_table(path, said, rank)
        for path, rank in zip(paths, _ranks_of_files(paths), strict=True)
    ]
    if len(tables) == 1:
        return tables[0]
    steps: Steps = {}
    for path, table in zip(paths, tables, strict=True):
        if repeated := steps.keys() & table.steps.keys():
            name = min(repeated)
            raise ConfigError(
                f"{path}: worker {name!r} is in another table, too. If this is the column of"
                f" seconds, say {option('seconds', name)}."
            )
        steps.update(table.steps)
    return StepTable(
        {rank: steps[rank] for rank in sorted(steps, key=by_number)},
        " and ".join(dict.fromkeys(table.unit for table in tables)),
        tuple(dict.fromkeys(title for table in tables for title in table.left_out)),
        sum(table.rows_left_out for table in tables),
    )


def _ranks_of_files(paths: Sequence[Path]) -> list[str]:
    """Return a rank for each table without workers: its file, or, of equal names, its folder."""
    stems = [_stem(path) for path in paths]
    if len({*stems}) == len(stems):
        return stems
    parts = [[*path.absolute().parent.parts, stem] for path, stem in zip(paths, stems, strict=True)]
    shared = {*parts[0]}.intersection(*parts)
    return [
        " ".join(part for part in names if part not in shared) or stem
        for names, stem in zip(parts, stems, strict=True)
    ]


def _stem(path: Path) -> str:
    return path.with_suffix("").stem if path.suffix.lower() == PACKED else path.stem


# ---- the cells: texts, by the number of their line or row, and by the title of their column ----


def _csv(path: Path) -> pd.DataFrame:
    text = read_text(path, LARGEST_BYTES)
    header = re.search(r"^.*\S.*$", text, re.M)
    if header is None:
        raise ValueError("it is empty; its first line must name the columns")
    # only the titles show the separator: numbers can have a decimal comma
    separator = next((sign for sign in "\t;" if sign in header[0]), ",")
    _check_size(header[0].count(separator) + 1, text.count(separator) + text.count("\n"))
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    try:
        stripped = ((reader.line_num, [*map(str.strip, row)]) for row in reader)
        rows = {line: cells for line, cells in stripped if any(cells)}
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: it is no CSV ({error})") from error
    first, *lines = rows
    titles = rows.pop(first)
    for line in (first, *lines):
        cells = rows.get(line, titles)
        if cells[0].startswith("#"):
            raise ValueError(f"line {line}: a comment, {shortened(cells[0])}; delete it")
        if len(cells) > len(titles):
            raise ValueError(f"line {line}: {len(cells)} values, but {len(titles)} columns")
        cells += [""] * (len(titles) - len(cells))
    if not _parse_numbers(pd.Series(titles)).isna().any():
        raise ValueError(f"line {first}: it must name the columns; got numbers")
    index = pd.Index(lines, name="line")
    table = pd.DataFrame([*rows.values()], index, _with_index_title(titles), dtype=object)
    return table if separator == "," else _with_points(table)


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
    if len(titles) > 1 and not titles[0]:
        has_step = any(title.lower() in STEPS for title in titles)
        titles = ["index" if has_step else "step", *titles[1:]]
    if "" in titles:
        raise ValueError(f"column {titles.index('') + 1} has no title in the first line")
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


def _parse_numbers(cells: pd.Series[str]) -> pd.Series[float]:
    return pd.to_numeric(cells, errors="coerce").astype(float)


def _place(rows: pd.DataFrame | pd.Series[str], at: int = 0) -> str:
    """Return "line 7" or "row 7"."""
    return f"{rows.index.name} {rows.index[at]}"


# ---- the rows: a step of a rank each ----


def _filled(cells: pd.DataFrame, roles: Roles) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Leave out columns without a role, and rows without seconds that such a column fills."""
    known = {roles.step, roles.epoch, *roles.worker, *roles.durations}
    others = [str(title) for title in cells if title not in known]
    is_out = cells[[*roles.durations]].isin(NOTHING).all(axis=1)
    is_out &= ~cells[others].isin(NOTHING).all(axis=1)
    if is_out.all():
        raise ValueError(f"it holds no step times in {listed([*roles.durations])}")
    return cells[~is_out], tuple(others)


def _rows(cells: pd.DataFrame, roles: Roles) -> pd.DataFrame:
    """Return `rank`, `epoch`, `step` and the `cell` of the duration, by line."""
    names = [*roles.durations.values()]
    _check_distinct(names)
    rows = pd.concat([_step_numbers(cells, roles)] * len(names))
    rows["cell"] = cells[[*roles.durations]].to_numpy().ravel("F")
    rows["rank"] = pd.Categorical(names).repeat(len(cells))
    if roles.worker:
        workers = cells[[*roles.worker]]
        if (unnamed := (workers == "").any(axis=1)).any():
            raise ValueError(f"{_place(workers[unnamed])}: no worker in {listed(roles.worker)}")
        rows["rank"] = pd.Categorical([*map(" ".join, workers.to_numpy())])
    if (count := rows["rank"].nunique()) > MOST_RANKS:
        raise ValueError(f"it has {count:,} workers; at most {MOST_RANKS:,} workers are read")
    return rows


def _step_numbers(cells: pd.DataFrame, roles: Roles) -> pd.DataFrame:
    """Return each row's epoch and step; without a column `step`, 0 and the row's number."""
    rows = pd.DataFrame({"epoch": 0.0, "step": np.arange(len(cells)) * 1.0}, cells.index)
    titles = {"step": roles.step, "epoch": roles.epoch} if roles.step else {}
    for kind, title in titles.items():
        if title is None:
            continue
        rows[kind] = _parse_numbers(cells[title])
        # an epoch can be a part of one; NaN and infinity are no steps
        is_wrong = rows[kind].isna() if kind == "epoch" else rows[kind] % 1 != 0
        if len(wrong := cells[title][is_wrong]):
            number = "a number" if kind == "epoch" else "a whole number"
            raise ValueError(
                f"{_place(wrong)}: {title} must be {number}; got {shortened(wrong.iloc[0])}"
            )
    return rows


# ---- the steps ----


def _step_times(rows: pd.DataFrame, roles: Roles) -> Steps:
    rows = rows.assign(seconds=_parse_numbers(rows["cell"]) * SECONDS[roles.unit])
    _check_durations(rows, roles)
    rows = rows.sort_values(NUMBERED, kind="stable")
    _check_step_numbers(rows, roles)
    by_rank = rows.groupby("rank", sort=False, observed=True)["seconds"]
    steps = {str(rank): tuple(seconds.tolist()) for rank, seconds in by_rank}
    order = sorted(steps, key=by_number) if roles.worker else roles.durations.values()
    return {rank: steps[rank] for rank in order}


def _check_durations(rows: pd.DataFrame, roles: Roles) -> None:
    wrong = rows[~rows["seconds"].between(0, LONGEST_S, inclusive="right")]
    if wrong.empty:
        return
    rank, text, seconds = wrong[["rank", "cell", "seconds"]].iloc[0]
    title = next(title for title, name in roles.durations.items() if name in ("", rank))
    why = f"a step lasts {seconds:g} s; it must be above 0 and at most {LONGEST_S:g} s"
    if not text:
        why = "no seconds; a step is missing"
    elif math.isnan(seconds) and text.lower() != "nan":
        why = f"{shortened(text)} is no number of seconds; see --columns"
    raise ValueError(f"{_place(wrong)}: column {title!r}, worker {rank!r}: {why}")


def _check_step_numbers(rows: pd.DataFrame, roles: Roles) -> None:
    """Refuse steps that are given twice or missing, in rows sorted by epoch and step."""
    numbers = rows[NUMBERED]
    order = numbers.drop_duplicates()  # the steps of all ranks
    steps, change = order["step"].to_numpy(), order.diff()
    strides = change["step"][change["step"] > 0]
    stride = 1.0 if strides.empty else strides.quantile(interpolation="lower")
    follows = change["step"] == stride
    follows |= (change["epoch"] == 1) & (order["step"] == steps[0])  # each epoch starts over
    place = numbers.groupby(NUMBERED).ngroup().to_numpy()
    expected = rows.groupby("rank", observed=True).cumcount().to_numpy()
    is_repeated = rows.duplicated(["rank", *NUMBERED]).to_numpy()
    is_wrong = is_repeated | (place != expected) | (~follows.to_numpy()[place] & (place > 0))
    if not is_wrong.any():
        return
    at = int(is_wrong.argmax())
    rank, step, number = rows["rank"].iloc[at], roles.step, steps[place[at]]
    given = f"{_place(rows, at)}: {step} {number:.0f} of worker {rank!r}"
    if is_repeated[at]:
        first = rows[(place == place[at]) & (rows["rank"] == rank)]
        hint = f". Two columns may name it: {option('worker', BOTH)}" if roles.worker else ""
        raise ValueError(f"{given} is given twice, first in {_place(first)}{hint}")
    is_gap = place[at] == expected[at]  # all ranks lack the step
    missing = steps[place[at] - 1] + stride if is_gap else steps[expected[at]]
    raise ValueError(
        f"{given}, but its {step} {missing:.0f} is missing; the steps go on by {stride:.0f}"
    )
