"""Step times that were measured: the `trace` of a worker group, and the tables that hold one.

    numbers   a text file of seconds, one list; a group shares it
    wide      a column a worker and a row a step; a column `step`, if there is one, numbers the rows
    long      the columns worker, step and seconds, in any order of rows

A table is CSV or parquet. Each worker keeps its own steps, so what a step of one worker has to do
with the same step of another (the same batch, a node that is slow) stays: a synchronous round takes
the largest number of a row, and the mean of these is not that of rows that are mixed.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from raysync.config.number_files import numbers_in
from raysync.paradigms.class_loading import may_import

TABLES = (".csv", ".parquet")
"""The suffixes of tables."""
LONG = ("worker", "step", "seconds")
STEP = LONG[1]

Steps = dict[str, tuple[float, ...]]
"""Worker -> the seconds of its steps, in their order."""
Row = tuple[str, Sequence[Any]]
"""Where a row stands ("line 7"), and its cells."""


def read_table(path: Path) -> Steps:
    """Read a table of step times.

    Args:
        path: a CSV or parquet file, wide or long (see above).

    Returns:
        The seconds of each worker's steps. In a long table workers can have different numbers of
        steps; they are sorted by name, `rank2` before `rank10`.

    Raises:
        ValueError: it cannot be read, is neither wide nor long, or a step is missing, given twice,
            or no duration. The message names the file and the line (of parquet, the row).
    """
    try:
        header, rows = _parquet(path) if path.suffix == ".parquet" else _csv(path)
        names = [str(name).strip() for name in header]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"the column {twice[0]!r} is there twice")
        steps = _long(names, rows) if set(names) >= {"worker", "seconds"} else _wide(names, rows)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error})") from error
    except ValueError as error:  # also what is no text, no CSV or no parquet
        what = "it is no text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise ValueError(f"{path}: {what}") from error
    return steps


def _csv(path: Path) -> tuple[list[str], Iterator[Row]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True, skipinitialspace=True)
        try:
            lines = [(reader.line_num, cells) for cells in reader if any(map(str.strip, cells))]
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: not CSV ({error})") from error
    if not lines:
        raise ValueError("it is empty; its first line must name the columns")
    first, header = lines[0]
    if all(_is_number(name) for name in header):
        raise ValueError(f"line {first}: it must name the columns; got numbers")
    return header, _whole(len(header), ((f"line {line}", cells) for line, cells in lines[1:]))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _whole(columns: int, rows: Iterator[Row]) -> Iterator[Row]:
    for place, cells in rows:
        if len(cells) != columns:
            raise ValueError(f"{place}: {len(cells)} values, but there are {columns} columns")
        yield place, cells


def _parquet(path: Path) -> tuple[list[str], Iterator[Row]]:
    import pyarrow.parquet as pq  # slow to import

    table = pq.read_table(path)
    columns = [column.to_pylist() for column in table.columns]
    rows = enumerate(zip(*columns, strict=True), 1)
    return table.column_names, ((f"row {number}", cells) for number, cells in rows)


def _wide(names: Sequence[str], rows: Iterator[Row]) -> Steps:
    workers = [name for name in names if name != STEP]
    if not workers or "" in workers:
        raise ValueError("each column needs the name of a worker in the first line")
    at = names.index(STEP) if STEP in names else None
    seconds: dict[str, list[float]] = {worker: [] for worker in workers}
    last: int | None = None
    for place, cells in rows:
        if at is not None:
            step = _step(cells[at], place)
            if last is not None and step != last + 1:
                said = f"step {last + 1} is missing" if step > last else f"it stands behind {last}"
                raise ValueError(f"{place}: step {step}, but {said}")
            last = step
        for name, cell in zip(names, cells, strict=True):
            if name != STEP:
                seconds[name].append(_seconds(cell, f"{place}: worker {name!r}"))
    if not seconds[workers[0]]:
        raise ValueError("it holds no step times")
    return {worker: tuple(values) for worker, values in seconds.items()}


def _long(names: Sequence[str], rows: Iterator[Row]) -> Steps:
    if missing := [name for name in LONG if name not in names]:
        raise ValueError(f"no column {missing[0]!r}; the long form has {', '.join(LONG)}")
    worker_at, step_at, seconds_at = map(names.index, LONG)
    table: dict[str, dict[int, tuple[float, str]]] = {}
    for place, cells in rows:
        worker = "" if cells[worker_at] is None else str(cells[worker_at]).strip()
        if not worker:
            raise ValueError(f"{place}: no worker")
        step = _step(cells[step_at], place)
        of_worker = table.setdefault(worker, {})
        if step in of_worker:
            before = of_worker[step][1]
            raise ValueError(
                f"{place}: step {step} of worker {worker!r} is given twice, first in {before}"
            )
        of_worker[step] = _seconds(cells[seconds_at], f"{place}: worker {worker!r}"), place
    if not table:
        raise ValueError("it holds no step times")
    first = min(min(of_worker) for of_worker in table.values())
    return {
        worker: _complete(worker, table[worker], first) for worker in sorted(table, key=by_number)
    }


def _complete(worker: str, steps: Mapping[int, tuple[float, str]], first: int) -> tuple[float, ...]:
    """Return the seconds of a worker's steps in their order.

    Raises:
        ValueError: a step is missing between the first one of the table and its last.
    """
    ordered = sorted(steps)
    for expected, step in enumerate(ordered, first):
        if step != expected:
            raise ValueError(
                f"{steps[step][1]}: step {step} of worker {worker!r}, but its step {expected} is"
                " missing"
            )
    return tuple(steps[step][0] for step in ordered)


def by_number(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names with numbers in them: rank2 before rank10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def _step(cell: Any, place: str) -> int:
    try:
        step = int(cell)
        if isinstance(cell, str) or step == cell:
            return step
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"{place}: a step must be a whole number; got {cell!r}")


def _seconds(cell: Any, place: str) -> float:
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        raise ValueError(f"{place}: no seconds; a step is missing")
    try:
        seconds = float(cell)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {cell!r} is no number of seconds") from error
    _check_duration(seconds, f"{place}: a step")
    return seconds


Numbers = tuple[float, ...]


def trace_of(trace: object, group: str, count: int) -> object:
    """Return the step times that a group's `trace` names; what is no trace is returned as it is.

    Args:
        trace: a list of seconds, which the group's workers share; a list of such lists, one a
            worker; or the path of a file: of a table, the group takes the columns that are called
            after its workers (GROUP-0, GROUP-1, ...), otherwise all of them; of a text, its numbers
            (separated by white space, where `#` begins a comment).
        group: the name of the group.
        count: the number of its workers.

    Raises:
        ValueError: there is no such file, one of the numbers is no duration, or there are not as
            many workers in it as in the group.
    """
    if isinstance(trace, str | Path):
        if not may_import():
            raise ValueError(f"a record holds the numbers themselves; got {str(trace)!r}")
        path = Path(trace).expanduser()
        return (
            _columns(path, group, count)
            if path.suffix in TABLES
            else numbers_in(path, "step times", "seconds")
        )
    if not isinstance(trace, list | tuple):
        raise ValueError(
            f"must be seconds, [..., ...], such a list for each worker, or the path of a file; got"
            f" {trace!r}"
        )
    if any(isinstance(each, list | tuple) for each in trace):
        _check_lists(trace, count)
    else:
        _check_numbers(trace)
    return trace


def _columns(path: Path, group: str, count: int) -> tuple[Numbers, ...]:
    table = read_table(path)
    own = [f"{group}-{number}" for number in range(count)]
    if all(name in table for name in own):
        return tuple(table[name] for name in own)
    if len(table) != count:
        shown = ", ".join(list(table)[:4]) + (", ..." if len(table) > 4 else "")
        raise ValueError(
            f"{path} has the steps of {len(table)} worker{'s' * (len(table) > 1)} ({shown}), and"
            f" group {group!r} has {count}; make them as many (count: {len(table)}), or call"
            f" columns after the group's workers: {group}-0, ..."
        )
    return tuple(table.values())


def _check_lists(trace: Sequence[Any], count: int) -> None:
    for number, steps in enumerate(trace):
        if not isinstance(steps, list | tuple) or not steps:
            raise ValueError(f"worker {number} needs a list of seconds; got {steps!r}")
        _check_numbers(steps, f"worker {number}: ")
    if len(trace) != count:
        raise ValueError(
            f"{len(trace)} lists, one a worker, for {count} worker{'s' * (count > 1)}; make them as"
            " many"
        )


def _check_numbers(steps: Sequence[Any], source: str = "") -> None:
    for number, seconds in enumerate(steps, 1):
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise ValueError(f"{source}step {number}: {seconds!r} is no number of seconds")
        _check_duration(seconds, f"{source}step {number}")


def _check_duration(seconds: float, step: str) -> None:
    if not 0 < seconds < inf:
        raise ValueError(f"{step} lasts {seconds:g} s; it must be above 0 and finite")


def resolve(settings: dict[str, Any], folder: Path) -> None:
    """Make the paths of measured numbers (`trace`, `jitter.samples`) in the settings of an
    experiment, or of a profile, relative to the folder of the file that names them.
    """
    groups = settings.get("workers")
    for group in groups if isinstance(groups, list) else []:
        if not isinstance(group, dict):
            continue
        for block, name in ((group, "trace"), (group.get("jitter"), "samples")):
            if isinstance(block, dict) and isinstance(block.get(name), str):
                block[name] = str(folder / Path(block[name]).expanduser())


def steps_of(trace: Numbers | tuple[Numbers, ...], number: int, count: int) -> tuple[Numbers, int]:
    """Return the step times of a group's worker, and the index of its first one.

    Args:
        trace: of the group. One list is shared: the n-th of N workers begins n/N of the way
            through. Of several, each worker has its own, from its first one on: so the workers'
            steps stay side by side.
        number: the number of the worker in its group.
        count: the number of the group's workers.
    """
    if trace and isinstance(trace[0], tuple):
        return trace[number], 0
    return trace, number * len(trace) // count  # type: ignore[return-value]


def middle(traces: Sequence[Numbers]) -> Numbers:
    """Return, of several workers' step times, those whose mean is in the middle."""
    return sorted(traces, key=fmean)[len(traces) // 2]


def is_shared(trace: Numbers | tuple[Numbers, ...], count: int) -> bool:
    """Say whether several workers share one list of step times."""
    return bool(trace) and count > 1 and not isinstance(trace[0], tuple)
