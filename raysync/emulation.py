"""How long an emulated worker computes: the same numbers for every engine."""

from __future__ import annotations

from math import exp

from raysync.config import Jitter, WorkerGroup
from raysync.randomness import standard_normal

SHORTEST = 0.05
"""A normal jitter never shortens a step to less than this share of it."""


def jitter_factor(jitter: Jitter, seed: int, slot: str, clock: int) -> float:
    """What a step's duration is multiplied by; its mean is 1 (almost: the normal one is cut at `SHORTEST`)."""
    if jitter.distribution == "none" or jitter.sigma == 0:
        return 1.0
    draw = standard_normal(seed, "jitter", slot, clock)
    if jitter.distribution == "lognormal":
        return exp(jitter.sigma * draw - jitter.sigma**2 / 2)
    return max(SHORTEST, 1 + jitter.sigma * draw)


def step_duration_s(group: WorkerGroup, computed_s: float, seed: int, slot: str, clock: int) -> float:
    """How long this step lasts on the emulated device, in seconds.

    Args:
        group: where the device is described: `step_s` (or, without it, the measured `computed_s`) / `speed` x jitter.
        computed_s: how long the step took on the device that is really there.
        seed: of the run.
        slot: of the worker.
        clock: the iteration.
    """
    base_s = group.step_s if group.step_s is not None else computed_s
    return base_s / group.speed * jitter_factor(group.jitter, seed, slot, clock)
