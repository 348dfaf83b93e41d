"""How long an emulated worker computes, and its link delays it: the same numbers for every
engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import exp, log

from raysync.config import Jitter, Link, WorkerGroup
from raysync.core.ids import Slot
from raysync.randomness import prefix_of, standard_normal, uniform_at

SHORTEST = 0.05
"""A normal jitter never shortens a step to less than this share of it."""


def jitter_of(jitter: Jitter, seed: int, slot: str) -> Callable[[int], float]:
    """Return what multiplies the duration of a worker's step, by its clock.

    Its mean is 1 (almost: the normal one is cut at `SHORTEST`).
    """
    if jitter.distribution == "exponential":
        return partial(_exponential, prefix_of(seed, "jitter", slot))
    sigma = jitter.sigma
    if jitter.distribution == "none" or sigma == 0:
        return lambda clock: 1.0
    if jitter.distribution == "lognormal":
        return lambda clock: exp(
            sigma * standard_normal(seed, "jitter", slot, clock) - sigma**2 / 2
        )
    return lambda clock: max(SHORTEST, 1 + sigma * standard_normal(seed, "jitter", slot, clock))


def _exponential(prefix: bytes, clock: int) -> float:
    return -log(uniform_at(prefix, clock))


class StepTime:
    """How long the steps of one worker last on the device that its group describes."""

    __slots__ = ("_begin", "_jitter", "_speed", "_step_s", "_trace")

    def __init__(self, group: WorkerGroup, seed: int, slot: str) -> None:
        """
        Args:
            group: where the device is described: `step_s` or `trace` (or, without them,
                `computed_s`) / `speed` x jitter. `flops_per_s` counts as `step_s` by now
                (`raysync.training.task`).
            seed: of the run.
            slot: of the worker.
        """
        self._step_s, self._trace, self._speed = group.step_s, group.trace, group.speed
        self._begin = Slot(slot).number * len(group.trace) // group.count if group.trace else 0
        self._jitter = jitter_of(group.jitter, seed, slot)

    def seconds(
        self, clock: int, factor: float = 1.0, share: float = 1.0, computed_s: float = 0.0
    ) -> float:
        """Return how long a step lasts.

        Args:
            clock: the iteration.
            factor: of the faults that at_step it.
            share: its batch / the experiment's own batch size, which is what `step_s` and `trace`
                are for: a step is taken to last in proportion.
            computed_s: how long the step took on the device that is really there.
        """
        base_s = computed_s
        if self._step_s is not None:
            base_s = self._step_s * share
        elif self._trace:
            base_s = self._trace[(self._begin + clock) % len(self._trace)] * share
        return base_s / self._speed * factor * self._jitter(clock)


def one_way_s(link: Link, size_bytes: int, added_s: float = 0.0) -> float:
    """How long a vector is on its way over a link that nobody else uses, in seconds.

    Args:
        link: between worker and server.
        size_bytes: of the vector.
        added_s: latency that faults add.
    """
    return (
        link.latency_s
        + added_s
        + (size_bytes / link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s else 0.0)
    )
