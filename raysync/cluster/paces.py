"""Measure how fast a server and the workers are, in their own processes, before a run begins."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median

import ray
import torch
from torch import Tensor

from raysync.cluster.clock import now_s
from raysync.cluster.server_count import Pace, UpdatePace
from raysync.cluster.transport import outgoing
from raysync.config import Update
from raysync.training.parameter_store import ParameterStore

STEPS = 4
"""The steps, or updates, that are timed; the first, which touches new memory, does not count."""
LONG_S = 2.0
"""After so many seconds no further one is timed."""
EMULATED = 32
"""The emulated steps whose mean is taken."""
SLICE_BYTES = 64 * 2**20
"""The part of a model whose update is timed: more than a processor's caches hold, so that longer
vectors take in proportion."""


def timed(step: Callable[[int], object]) -> float:
    """Return the seconds of a step: the median of some, or those of one that is long.

    Args:
        step: takes its number.
    """
    seconds: list[float] = []
    while len(seconds) < STEPS and sum(seconds) < LONG_S:
        began_s = now_s()
        step(len(seconds))
        seconds.append(now_s() - began_s)
    return median(seconds[1:] or seconds)


def returned(vector: Tensor) -> None:
    """Take the time that it costs an actor to return a vector: Ray copies it."""
    ray.put(outgoing(vector)[0])


def update_pace(server: object, update: Update, vector_bytes: int) -> UpdatePace:
    """Time updates of one gradient, and the publishing of the weights that they make, in the
    process that calls this: that of a server, with its threads.

    Args:
        server: unused; it is what Ray's `__ray_call__` passes.
        update: the settings of the run.
        vector_bytes: the size of a gradient.
    """
    size = max(1, min(vector_bytes, SLICE_BYTES) // 4)
    store = ParameterStore(torch.zeros(size), size, update)
    gradient = torch.full((size,), 1e-6)
    bases = [] if update.delay_compensation is None else [gradient]

    def apply_and_publish(number: int) -> None:
        store.apply([gradient], [1], [None], 0.0, staleness=[2], bases=bases)
        returned(store.publish())

    seconds = timed(apply_and_publish) * vector_bytes / (4 * size)
    return UpdatePace(seconds, torch.get_num_threads())


def step_pace(
    computed_s: float, emulated_s: Callable[[int], float], ways_s: float, *, on_gpu: bool
) -> Pace:
    """Return the pace of the worker that calls this.

    Args:
        computed_s: what a step takes to compute, with its copies.
        emulated_s: returns what the step of a clock takes as it is emulated, or that.
        ways_s: the seconds of the emulated link, there and back.
        on_gpu: whether a GPU computes.
    """
    steps = [max(computed_s, emulated_s(clock)) for clock in range(EMULATED)]
    core_s = 0.0 if on_gpu else computed_s * torch.get_num_threads()
    node = ray.get_runtime_context().get_node_id()
    return Pace(node, fmean(steps) + ways_s, core_s)
