"""Step times of workers, in seconds, from traces, tables and profiles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

Numbers = tuple[float, ...]
Steps = dict[str, Numbers]  # rank -> seconds of its steps, in order


def by_number(name: str) -> list[tuple[int, str]]:
    """Return a sort key for names with numbers: rank2 before rank10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


def steps_of(trace: Numbers | tuple[Numbers, ...], number: int, count: int) -> tuple[Numbers, int]:
    """Return a worker's step times, and the index of its first one.

    Workers share a single list: the n-th of N begins n/N of the way through. Of several lists, each
    worker has its own, from its start, so the workers' steps stay side by side.
    """
    if trace and isinstance(trace[0], tuple):
        return trace[number], 0
    return trace, number * len(trace) // count  # type: ignore[return-value]


def middle(traces: Sequence[Numbers]) -> Numbers:
    """Return the step times of the worker whose mean is the median."""
    return sorted(traces, key=fmean)[len(traces) // 2]


def is_shared(trace: Numbers | tuple[Numbers, ...], count: int) -> bool:
    """Whether several workers share one list of step times."""
    return bool(trace) and count > 1 and not isinstance(trace[0], tuple)
