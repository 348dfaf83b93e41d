"""The union of spans of time."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
AT_ONCE = 100_000  # the spans that are added to a union before the next one is formed


class TimeSpans:
    """The union of spans, which come in any order and may overlap."""

    def __init__(self) -> None:
        self._begins, self._ends = array("d"), array("d")
        self._most = AT_ONCE

    def __bool__(self) -> bool:
        return bool(self._begins)

    def __or__(self, other: TimeSpans) -> TimeSpans:
        union = TimeSpans()
        for spans in (self, other):
            union._begins += spans._begins
            union._ends += spans._ends
        return union

    def add(self, begin: float, end: float) -> None:
        self._begins.append(begin)
        self._ends.append(end)
        if len(self._begins) > self._most:
            begins, ends = self._union()
            self._begins, self._ends = array("d", begins.tobytes()), array("d", ends.tobytes())
            self._most = 2 * len(begins) + AT_ONCE

    def within(self, begins: Numbers, ends: Numbers) -> Numbers:
        """Return how much of each span from a begin to an end they cover."""
        if not self:
            return np.zeros(len(begins))
        edges = np.column_stack(self._union())
        covered = np.cumsum(edges[:, 1] - edges[:, 0])
        covered_until = np.column_stack((np.r_[0.0, covered[:-1]], covered)).ravel()
        after, before = (np.interp(at, edges.ravel(), covered_until) for at in (ends, begins))
        covered_within: Numbers = after - before
        return covered_within

    def _union(self) -> tuple[Numbers, Numbers]:
        """Return begins and ends, disjoint and in their order."""
        begins, ends = np.array(self._begins), np.array(self._ends)
        order = np.argsort(begins)
        begins, ends = begins[order], np.maximum.accumulate(ends[order])
        first = np.flatnonzero(np.r_[True, begins[1:] > ends[:-1]])
        return begins[first], ends[np.r_[first[1:] - 1, -1]]
