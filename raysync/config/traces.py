"""Measured step times, the `trace` of a worker group: a text file of seconds, or a table."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from raysync.config.bounded_file import is_table, path_of, read_text
from raysync.config.durations import Numbers
from raysync.core.ids import worker_slot
from raysync.core.structs import LONGEST_S
from raysync.paradigms.class_loading import may_import

MOST_BYTES = 64_000_000  # the most that a text file has


def trace_of(trace: object, group: str, count: int) -> object:
    """Return the step times that a group's `trace` has, or names as a file.

    Args:
        trace: a list of seconds, which the group's workers share; a list of such lists, one a
            worker; or the path of a file. Of a table, the group takes the columns of its workers
            (GROUP-0, GROUP-1, ...), otherwise all; of a text, its numbers (separated by white
            space, where `#` begins a comment).

    Raises:
        ValueError: there is no such file, a number is no duration, or there are not as many workers
            in it as in the group.
    """
    if isinstance(trace, str | Path):
        if not may_import():
            raise ValueError(f"a record holds the numbers themselves; got {str(trace)!r}")
        path = path_of(trace)
        if is_table(path):
            return _read_columns(path, group, count)
        return _read_numbers(path)
    if not isinstance(trace, list | tuple):
        raise ValueError(
            f"must be seconds, [..., ...], such a list for each worker, or the path of a file; got"
            f" {trace!r}"
        )
    if any(isinstance(steps, list | tuple) for steps in trace):
        _check_lists(trace, count)
    else:
        _check_numbers(trace)
    return trace


def resolve_traces(settings: dict[str, Any], folder: Path) -> None:
    """Make trace paths of an experiment or a profile relative to the folder of its file."""
    groups = settings.get("workers")
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, dict) and isinstance(group.get("trace"), str):
            group["trace"] = str(folder / path_of(group["trace"]))


def _read_columns(path: Path, group: str, count: int) -> tuple[Numbers, ...]:
    from raysync.config.step_tables import read_table  # with pandas: slow to import

    table = read_table(path).steps
    workers = [worker_slot(group, number) for number in range(count)]
    if all(worker in table for worker in workers):
        return tuple(table[worker] for worker in workers)
    if len(table) != count:
        ranks = ", ".join(list(table)[:4]) + (", ..." if len(table) > 4 else "")
        raise ValueError(
            f"{path} has the steps of {len(table)} worker{'s' * (len(table) > 1)} ({ranks}), and"
            f" group {group!r} has {count}; make them as many (count: {len(table)}), or call"
            f" columns after the group's workers: {group}-0, ..."
        )
    return tuple(table.values())


def _read_numbers(path: Path) -> list[float]:
    seconds: list[float] = []
    for line, text in enumerate(read_text(path, MOST_BYTES).splitlines(), 1):
        for word in text.partition("#")[0].split():
            try:
                seconds.append(float(word))
            except ValueError as error:
                raise ValueError(
                    f"{path} must hold seconds and nothing else (line {line}: {error})"
                ) from error
            _check_duration(seconds[-1], f"{path}, line {line}: a step")
    if not seconds:
        raise ValueError(f"{path} holds no step times")
    return seconds


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
    try:
        seconds = float(seconds)
    except OverflowError:  # a whole number may have any number of digits
        seconds = inf
    if not 0 < seconds <= LONGEST_S:
        raise ValueError(
            f"{step} lasts {seconds:g} s; it must be above 0 and at most {LONGEST_S:g} s"
        )
