"""The kernels that each step of a GPU launched: they may end long after the CPU has gone on.

A CPU that waits for no result launches the next step's kernels while those of this one run.
"""

from __future__ import annotations

from array import array
from math import inf, isfinite

import numpy as np

from raysync.predict.step_times.time_spans import Numbers
from raysync.predict.step_times.trace_files import TraceEvent

# how categories of events end that launch kernels: cuda_runtime, cuda_driver, xpu_runtime
LAUNCHING = ("_runtime", "_driver")


class LaunchedKernels:
    """Kernels and their launches, which have one number, `correlation`."""

    def __init__(self) -> None:
        self._launches, self._kernels = array("d"), array("d")

    def add(self, event: TraceEvent) -> None:
        args, category, begin_us = event.get("args"), str(event.get("cat")), event["ts"]
        number = args.get("correlation") if isinstance(args, dict) else None
        if not isinstance(number, float) or not isfinite(number):
            return
        if category.endswith(LAUNCHING):
            self._launches.extend((number, begin_us))
        elif category == "kernel":
            us = event.get("dur")
            end_us = begin_us + us if isinstance(us, float) and isfinite(us) else begin_us
            self._kernels.extend((number, begin_us, end_us))

    def spans(self, begins: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
        """Return when steps begin and end on the GPU: each after the one before has ended.

        Args:
            begins: of the steps on the CPU.
            ends: of the same.
        """
        numbers, kernel_begins, kernel_ends = np.array(self._kernels).reshape(-1, 3).T
        launches = dict(zip(self._launches[::2], self._launches[1::2], strict=True))
        at = np.array([launches.get(number, -inf) for number in numbers])
        step = np.searchsorted(begins, at, side="right") - 1
        step = np.where((step >= 0) & (at < ends[step]), step, -1)  # -1: no step launched it
        last_ends = np.full(len(begins) + 1, -inf)  # at the end, of kernels of no step
        np.maximum.at(last_ends, step, kernel_ends)
        last_ends = np.maximum.accumulate(last_ends[:-1])
        # the first step waits for kernels of one before, whose launches the profiler did not see
        own = kernel_begins[step == 0]
        earlier = kernel_ends[kernel_begins < own.min()] if own.size else own
        before = np.r_[earlier.max(initial=-inf), last_ends[:-1]]
        return np.maximum(begins, before), np.maximum(ends, last_ends)
