"""Compute a little before a run begins, and throw it away.

The first steps of a process take longer than all others: libraries are loaded, GPU kernels too, and
memory is touched, or pinned, for the first time. On a GPU that takes seconds. Actors are kept from
one run of a comparison to the next, so the first paradigm alone would pay for it, and its pace and
its time to the target would look worse than they are.

What is computed here has modules of its own, and the generators are restored: the numbers of a run
are those without. A worker's own tensors, its buffers among them, are not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from raysync.cluster.clock import now_s
from raysync.training.data.batch_reader import generators_restored

STEPS = 2
LONG_S = 1.0
"""A step that takes longer is not repeated: what a first step takes beyond the others is small
beside it."""

_WARM: set[Any] = set()
"""What this process is warm for."""


def warm_up(key: Any, make: Callable[[], Callable[[int], object]]) -> None:
    """Compute some steps, unless this process has done so before.

    A step that fails is no concern of this function: the run will fail in the same way, and then it
    is known in which worker, and at which step.

    Args:
        key: what is computed; equal keys take the same code.
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
