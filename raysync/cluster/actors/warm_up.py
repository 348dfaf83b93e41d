"""Warm-up steps before a run begins, whose results are discarded.

The first steps of a process are slow: libraries and GPU kernels are loaded, and memory is touched
or pinned. Actors are reused from one run of a comparison to the next, so only the first paradigm
would pay. The warm-up has its own modules, and restores the random generators, so it does not
change the results.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from raysync.cluster.clock import now_s
from raysync.training.data.batch_reader import generators_restored

STEPS = 2
LONG_S = 1.0  # a longer step is not repeated: its start-up cost is small beside it

_WARM: set[Any] = set()  # the keys that this process is warm for


def warm_up(key: Any, make: Callable[[], Callable[[int], object]]) -> None:
    """Compute some steps, once per key and process.

    Errors are ignored: the run fails alike, with the worker and the step known.

    Args:
        key: what is computed; equal keys run the same code.
        make: called at most once; returns the step, which takes its number.
    """
    if key in _WARM:
        return
    with generators_restored(), suppress(Exception):
        step = make()
        for number in range(STEPS):
            began_s = now_s()
            step(number)
            if now_s() - began_s > LONG_S:
                break
        _WARM.add(key)
