"""Warm-up steps before a run begins, whose results are discarded.

The first steps of a process are slow (libraries, GPU kernels, memory), and actors are reused, so
only the first paradigm of a comparison would pay.
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

    Args:
        key: what is computed; equal keys run the same code.
        make: returns the step, which takes its number; it has its own modules.
    """
    if key in _WARM:
        return
    # An error is ignored: the run fails alike, and then worker and step are known.
    with generators_restored(), suppress(Exception):
        step = make()
        for number in range(STEPS):
            began_s = now_s()
            step(number)
            if now_s() - began_s > LONG_S:
                break
        _WARM.add(key)
