"""Tables of step times.

    wide   a column a rank and a row a step; a column `step`, if there is one, numbers the rows
    long   columns that name the rank, the step and its duration, in any order of rows

What a column is, `table_columns` says. A table is CSV (also with semicolons or tabs) or parquet.
Each rank keeps its own steps, so what a step of one rank has to do with the same step of another
(the same batch, a node that is slow) stays: a synchronous round takes the largest number of a row,
and the mean of these is not that of rows that are mixed.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from raysync.config.bounded_file import PACKED, read_bytes, read_text
from raysync.config.table_columns import Column, Kind, check_durations, column, ranks_of, shown
from raysync.errors import ConfigError

TEXTS, PARQUET = (".csv", ".tsv"), ".parquet"
TABLES = (*TEXTS, PARQUET)
"""The suffixes of tables, which may be in capital letters; `.gz` may follow them."""
LARGEST_BYTES = 50_000_000
MOST_RANKS = 10_000
MOST_CELLS = 2_000_000
LONG = "worker, step, seconds (or rank, host, ...; iteration, ...; duration_ms, ...)"
FIRST_EPOCH = 0

Steps = dict[str, tuple[float, ...]]
"""Rank -> the seconds of its steps, in their order."""
Number = tuple[int, int]
"""Epoch, and step."""


@dataclass(frozen=True)
class StepTable:
    """What a table of step times holds."""

    steps: Steps
    left_out: tuple[str, ...]
    """The columns beside the ranks' and `step`."""
    has_unit: bool
    """Whether a name says the unit of the durations."""


def is_table(path: Path) -> bool:
    """Say whether a file is a table, by its name."""
    return _suffix(path) in TABLES


def _suffix(path: Path) -> str:
    name = path.name.lower()
    return Path(name.removesuffix(PACKED)).suffix


def read_table(path: Path) -> StepTable:
    """Read a table of step times.

    In a long table ranks can have different numbers of steps; they are sorted by name, `rank2`
    before `rank10`.

    Raises:
        ValueError: it cannot be read, is neither wide nor long, a column is in doubt, or a step is
            missing, given twice, or no duration. The message names the file, and the column or the
            line (of parquet, the row).
    """
    try:
        columns, places = _parquet(path) if _suffix(path) == PARQUET else _csv(path)
        columns = _named(columns)
        kinds = {each.kind for each in columns}
        if Kind.RANK_NAMES in kinds and (
            Kind.SECONDS in kinds or (Kind.STEP in kinds and Kind.RANK not in kinds)
        ):
            return _long(columns, places)
        return _wide(columns, places)
    except ConfigError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


# ---- the file ----


def _csv(path: Path) -> tuple[list[Column], list[str]]:
    text = read_text(path, LARGEST_BYTES)
    first = next((line for line in text.splitlines() if line.strip()), "")
    # by the names alone: numbers with a decimal comma have as many commas as semicolons
    separator = next((each for each in "\t;" if each in first), ",")
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True
    )
    try:
        lines = _lines(reader)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: not CSV ({error})") from error
    if not lines:
        raise ValueError("it is empty; its first line must name the columns")
    (line, header), *rest = lines
    if all(_is_number(name) for name in header):
        raise ValueError(f"line {line}: it must name the columns; got numbers")
    places = [f"line {line}" for line, _ in rest]
    cells = [list(each) for each in zip(*(row for _, row in rest), strict=True)] or [
        [] for _ in header
    ]
    if separator != ",":
        cells = _with_points(header, cells)
    return [column(title.strip(), each) for title, each in zip(header, cells, strict=True)], places


def _lines(reader: Any) -> list[tuple[int, list[str]]]:
    """Return the lines that are not empty, with their numbers."""
    lines: list[tuple[int, list[str]]] = []
    for cells in reader:
        if not any(map(str.strip, cells)):
            continue
        if not lines:
            _check_size(len(cells), 0)
        elif len(cells) != len(lines[0][1]):
            raise ValueError(
                f"line {reader.line_num}: {len(cells)} values, but there are"
                f" {len(lines[0][1])} columns"
            )
        lines.append((reader.line_num, cells))
        _check_size(len(cells), len(lines) - 1)
    return lines


def _check_size(columns: int, rows: int) -> None:
    if columns > MOST_RANKS:
        raise ValueError(f"it has {columns:,} columns; at most {MOST_RANKS:,} are read")
    if columns * rows > MOST_CELLS:
        raise ValueError(f"it has more than {MOST_CELLS:,} cells, the most that are read")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _with_points(header: Sequence[str], columns: list[list[str]]) -> list[list[str]]:
    """Return cells with decimal points in place of commas.

    Raises:
        ValueError: some numbers of the table have a point, too: one of both would be wrong.
    """
    comma = re.compile(r"\s*[-+]?\d*,\d+(e[-+]?\d+)?\s*", re.I)
    point = re.compile(r"\s*[-+]?\d*\.\d+(e[-+]?\d+)?\s*", re.I)
    with_comma = [any(map(comma.fullmatch, cells)) for cells in columns]
    if not any(with_comma):
        return columns
    for title, cells in zip(header, columns, strict=True):
        if any(map(point.fullmatch, cells)):
            other = header[with_comma.index(True)]
            raise ValueError(
                f"numbers of the column {title!r} have a decimal point, and of {other!r} a comma"
            )
    return [
        [cell.replace(",", ".") if comma.fullmatch(cell) else cell for cell in cells]
        for cells in columns
    ]


def _parquet(path: Path) -> tuple[list[Column], list[str]]:
    import pyarrow as pa  # slow to import
    import pyarrow.parquet as pq

    data = read_bytes(path, LARGEST_BYTES)
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        # a few bytes can stand for any number of rows
        _check_size(file.metadata.num_columns, file.metadata.num_rows)
        table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it is no parquet ({error})") from error
    columns = [
        column(str(title).strip(), cells.to_pylist())
        for title, cells in zip(table.column_names, table.columns, strict=True)
    ]
    return columns, [f"row {number}" for number in range(1, table.num_rows + 1)]


# ---- the columns ----


def _named(columns: list[Column]) -> list[Column]:
    """Return columns that all have a name: pandas writes its index as a first one without.

    Raises:
        ValueError: another one has none, or one is there twice.
    """
    if len(columns) > 1 and not columns[0].title:
        is_step = all(each.kind is not Kind.STEP for each in columns)
        columns = [column("step" if is_step else "index", columns[0].cells), *columns[1:]]
    if any(not each.title for each in columns):
        raise ValueError("each column needs the name of a worker in the first line")
    for names in ([each.title for each in columns], [each.name for each in columns]):
        name, count = Counter(names).most_common(1)[0]
        if count > 1:
            raise ValueError(f"the column {name!r} is there twice")
    return columns


STEP_FIRST = ("global_step", "step", "iteration", "iter")
"""The name of the step where several columns could be meant."""


def _step_of(columns: Sequence[Column]) -> Column | None:
    steps = [each for each in columns if each.kind is Kind.STEP]
    return min(
        steps,
        key=lambda each: (
            STEP_FIRST.index(each.title.lower()) if each.title.lower() in STEP_FIRST else 99
        ),
        default=None,
    )


def _numbers(
    step: Column | None, columns: Sequence[Column], places: Sequence[str]
) -> list[Number] | None:
    """Return the number of each row's step; None: no column has it."""
    if step is None:
        return None
    epoch = next((each for each in columns if each.kind is Kind.EPOCH), None)
    epochs = epoch.cells if epoch is not None else [FIRST_EPOCH] * len(places)
    return [
        (_whole(of, place, "an epoch"), _whole(cell, place, "a step"))
        for of, cell, place in zip(epochs, step.cells, places, strict=True)
    ]


def _follows(before: Number, after: Number, first: int) -> bool:
    """Say whether a step is the next one: it may begin anew with each epoch."""
    (epoch, step), (next_epoch, next_step) = before, after
    if next_step == step + 1:
        return next_epoch in (epoch, epoch + 1)
    return next_epoch == epoch + 1 and next_step == first


def _whole(cell: Any, place: str, what: str) -> int:
    try:
        if isinstance(cell, str):
            # pandas writes the whole numbers of a column with a gap as 1.0
            cell = cell.strip().removesuffix(".0")
        number = int(cell)
        if isinstance(cell, str) or number == cell:
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{place}: {what} must be a whole number; got {_text(cell)}")


def _text(cell: Any) -> str:
    text = repr(cell)
    return text if len(text) < 60 else f"{text[:60]}..."


def _seconds(cell: Any, place: str, scale: float | None) -> float:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        raise ValueError(f"{place}: no seconds; a step is missing")
    try:
        seconds = float(cell) * (scale or 1.0)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{place}: {_text(cell)} is no number of seconds") from error
    if not 0 < seconds < inf:
        raise ValueError(f"{place}: a step lasts {seconds:g} s; it must be above 0 and finite")
    return seconds


# ---- the two forms ----


def _wide(columns: Sequence[Column], places: Sequence[str]) -> StepTable:
    ranks, others = ranks_of(columns)
    if not ranks:
        raise ValueError(
            "each column needs the name of a worker in the first line, or those of the"
            f" long form: {LONG}; got {shown([each.title for each in columns])}"
        )
    if not places:
        raise ValueError("it holds no step times")
    step = _step_of(columns)
    numbers = _numbers(step, columns, places)
    if step is not None and numbers is not None:
        for place, before, after in zip(places[1:], numbers, numbers[1:], strict=False):
            if not _follows(before, after, numbers[0][1]):
                said = f"it stands behind {before[1]}"
                if after > before:
                    said = f"{step.title} {before[1] + 1} is missing"
                raise ValueError(f"{place}: {step.title} {after[1]}, but {said}")
    steps = {
        rank.name: tuple(
            _seconds(cell, f"{place}: worker {rank.name!r}", rank.scale)
            for place, cell in zip(places, rank.cells, strict=True)
        )
        for rank in ranks
    }
    left_out = tuple(each.title for each in others if each.title != "step")
    return StepTable(steps, left_out, ranks[0].scale is not None)


def _long(columns: Sequence[Column], places: Sequence[str]) -> StepTable:
    names, seconds, step = _ranks(columns), _durations(columns), _step_of(columns)
    numbers = _numbers(step, columns, places)
    if numbers is None:
        raise ValueError(f"no column 'step'; the long form has {LONG}")
    table: dict[str, dict[Number, tuple[float, str]]] = {}
    for place, name, number, cell in zip(places, names, numbers, seconds.cells, strict=True):
        if not name:
            raise ValueError(f"{place}: no worker")
        of_rank = table.setdefault(name, {})
        if len(table) > MOST_RANKS:
            raise ValueError(f"it has more than {MOST_RANKS:,} workers, the most that are read")
        if number in of_rank:
            raise ValueError(
                f"{place}: step {number[1]} of worker {name!r} is given twice, first in"
                f" {of_rank[number][1]}"
            )
        of_rank[number] = _seconds(cell, f"{place}: worker {name!r}", seconds.scale), place
    if not table:
        raise ValueError("it holds no step times")
    order = _order(table)
    steps = {name: _complete(name, table[name], order) for name in sorted(table, key=by_number)}
    check_durations(seconds.title, steps.values())
    return StepTable(steps, (), seconds.scale is not None)


def _ranks(columns: Sequence[Column]) -> list[str]:
    """Return the rank of each row: of several columns the first one that tells as many apart as
    all of them do, otherwise all (a host, and the GPU in it).
    """
    naming = [each for each in columns if each.kind is Kind.RANK_NAMES]
    cells = [["" if cell is None else str(cell).strip() for cell in each.cells] for each in naming]
    together = [" ".join(row) if all(row) else "" for row in zip(*cells, strict=True)]
    count = len(set(together))
    return next((each for each in cells if len(set(each)) == count), together)


def _durations(columns: Sequence[Column]) -> Column:
    found = [each for each in columns if each.kind is Kind.SECONDS]
    exact = [each for each in found if each.title.lower() == "seconds"]
    if not found:
        raise ValueError(f"no column 'seconds'; the long form has {LONG}")
    if len(found) > 1 and not exact:
        raise ValueError(
            f"which column has the steps' durations: {shown([each.title for each in found])}? Call"
            " it 'seconds'"
        )
    return (exact or found)[0]


def _order(table: Mapping[str, Mapping[Number, tuple[float, str]]]) -> list[Number]:
    """Return the numbers of the steps of all ranks, in their order.

    Raises:
        ValueError: one is missing in between.
    """
    order = sorted(set().union(*table.values()))
    for before, after in pairwise(order):
        if not _follows(before, after, order[0][1]):
            name = next(each for each in table if after in table[each])
            _missing(name, table[name][after][1], after, before[1] + 1)
    return order


def _complete(
    name: str, steps: Mapping[Number, tuple[float, str]], order: Sequence[Number]
) -> tuple[float, ...]:
    """Return the seconds of a rank's steps in their order.

    Raises:
        ValueError: one is missing before its last one.
    """
    ordered = sorted(steps)
    for expected, number in zip(order, ordered, strict=False):
        if number != expected:
            _missing(name, steps[number][1], number, expected[1])
    return tuple(steps[number][0] for number in ordered)


def _missing(name: str, place: str, number: Number, expected: int) -> None:
    raise ValueError(
        f"{place}: step {number[1]} of worker {name!r}, but its step {expected} is missing"
    )


def by_number(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names with numbers in them: rank2 before rank10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]
