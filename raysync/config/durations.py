"""Step times of workers, in seconds: what a trace, a table or a profile comes to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

Numbers = tuple[float, ...]
Steps = dict[str, Numbers]
"""Rank -> the seconds of its steps, in their order."""


def by_number(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names with numbers in them: rank2 before rank10."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)
    ]


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
