"""What happens at which time: the heap that both engines work off."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf
from typing import Any


class Agenda:
    """Calls in the order of their times; those of the same time in the order in which they were put down."""

    def __init__(self) -> None:
        self.now = 0.0
        """The time of the latest call, in seconds."""
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._count = 0

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        """Put a call down."""
        self._count += 1
        heappush(self._heap, (at, self._count, happens, argument))

    def advance(self) -> None:
        """Make the next call."""
        assert self._heap, "nothing will ever happen"
        self.now, _, happens, argument = heappop(self._heap)
        happens(argument)

    @property
    def next_at(self) -> float:
        """When that is; infinity: nothing is put down."""
        return self._heap[0][0] if self._heap else inf

    def expects(self, happens: Callable[[Any], None]) -> bool:
        """Whether such a call is put down."""
        return any(each == happens for _, _, each, _ in self._heap)
