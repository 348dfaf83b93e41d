"""Measure the server's update in this process, with one thread."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.benchmark import Timer

from raysync.config import Update
from raysync.core.ids import worker_id, worker_slot
from raysync.training.server.apply_plan import ApplyPlan
from raysync.training.server.parameter_store import ParameterStore

GRADIENTS = 8  # of the update that is compared with one of a single gradient


@dataclass(frozen=True, slots=True)
class UpdateTimes:
    """A fixed time, and one for each gradient that the update reads."""

    update_s: float
    bytes_per_s: float


def update_times(vector_bytes: int, update: Update) -> UpdateTimes:
    one_s, all_s = (update_s(vector_bytes, count, update) for count in (1, GRADIENTS))
    reading_s = max(1e-9, (all_s - one_s) / (GRADIENTS - 1))
    return UpdateTimes(max(0.0, one_s - reading_s), vector_bytes / reading_s)


def update_s(vector_bytes: int, gradients: int, update: Update) -> float:
    """Measure the median seconds of one update."""
    size = vector_bytes // 4
    store = ParameterStore(torch.zeros(size), size, update)
    vectors = [torch.full((size,), 1e-6) for _ in range(gradients)]
    workers: list[str | None] = [
        worker_id(worker_slot("w", index), 1) for index in range(gradients)
    ]
    plan = ApplyPlan(workers, [1] * gradients, 0.0, "", staleness=[2] * gradients, version=1)
    if update.delay_compensation is not None:
        vectors *= 2

    def once() -> None:
        store.apply(plan, vectors)
        store.publish()

    return float(
        Timer("once()", globals={"once": once}, num_threads=1)
        .blocked_autorange(min_run_time=0.2)
        .median
    )
