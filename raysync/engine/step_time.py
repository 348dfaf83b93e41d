"""How long an emulated worker computes, and its link delays it: the same numbers for every engine."""

from __future__ import annotations

from math import exp, log

from raysync.config import Jitter, Link, WorkerGroup
from raysync.core.ids import Slot
from raysync.randomness import standard_normal, uniform

SHORTEST = 0.05
"""A normal jitter never shortens a step to less than this share of it."""


def jitter_factor(jitter: Jitter, seed: int, slot: str, clock: int) -> float:
    """What a step's duration is multiplied by; its mean is 1 (almost: the normal one is cut at `SHORTEST`)."""
    if jitter.distribution == "exponential":
        return -log(uniform(seed, "jitter", slot, clock))
    if jitter.distribution == "none" or jitter.sigma == 0:
        return 1.0
    draw = standard_normal(seed, "jitter", slot, clock)
    if jitter.distribution == "lognormal":
        return exp(jitter.sigma * draw - jitter.sigma**2 / 2)
    return max(SHORTEST, 1 + jitter.sigma * draw)


def step_duration_s(
    group: WorkerGroup, computed_s: float, seed: int, slot: str, clock: int, factor: float = 1.0, share: float = 1.0,
) -> float:
    """How long this step lasts on the emulated device, in seconds.

    Args:
        group: where the device is described: `step_s` or `trace` (or, without them, `computed_s`) / `speed` x jitter.
            `flops_per_s` counts as `step_s` by now (`raysync.training.task`).
        computed_s: how long the step took on the device that is really there.
        seed: of the run.
        slot: of the worker.
        clock: the iteration.
        factor: of the troubles that befall it.
        share: its batch / the experiment's own batch size, which is what `step_s` and `trace` are for: a step is taken to
            last in proportion.
    """
    base_s = computed_s
    if group.step_s is not None:
        base_s = group.step_s * share
    elif group.trace:
        begin = Slot(slot).number * len(group.trace) // group.count
        base_s = group.trace[(begin + clock) % len(group.trace)] * share
    return base_s / group.speed * factor * jitter_factor(group.jitter, seed, slot, clock)


def one_way_s(link: Link, size_bytes: int, added_s: float = 0.0) -> float:
    """How long a vector is on its way over a link that nobody else uses, in seconds.

    Args:
        link: between worker and server.
        size_bytes: of the vector.
        added_s: latency that troubles add.
    """
    return link.latency_s + added_s + (size_bytes / link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s else 0.0)
