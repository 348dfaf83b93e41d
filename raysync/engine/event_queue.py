"""The event queue of a clock of real seconds: a heap of timed calls.

The virtual backend has a heap of its own, on its hot path, which moves the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any


class EventQueue:
    """Calls in the order of their times, then of their scheduling."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        self._count += 1
        heappush(self._heap, (at, self._count, happens, argument))

    def advance(self) -> None:
        """Make the next call."""
        assert self._heap, "the event queue is empty"
        _, _, happens, argument = heappop(self._heap)
        happens(argument)

    @property
    def next_at(self) -> float:
        """The time of the next call, or infinity."""
        return self._heap[0][0] if self._heap else inf
