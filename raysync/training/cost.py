"""What a step of a model costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from raysync.training.data import Batches, data_set
from raysync.training.gradient import GradientComputation
from raysync.training.models import ModelPlan

STEP_BATCH = 128
COUNTED = 4
"""Samples of the batch whose operations are counted; they grow in proportion."""


def step_s(plan: ModelPlan, batch_size: int = STEP_BATCH) -> float:
    """Seconds of forward and backward of a batch of random samples on this machine, one thread: a
    median.
    """
    timer = Timer("compute(batches, 0, size)", globals=_step(plan, batch_size), num_threads=1)
    return float(timer.blocked_autorange(min_run_time=0.5).median)


def step_flops(plan: ModelPlan, batch_size: int) -> float:
    """Floating-point operations of forward and backward of a batch: those of torch's own count.

    It counts matrix products, convolutions and attention, where nearly all of them are.
    """
    step = _step(plan, COUNTED)
    with FlopCounterMode(display=False) as counter:
        step["compute"](step["batches"], 0, COUNTED)
    return float(counter.get_total_flops()) * batch_size / COUNTED


def _step(plan: ModelPlan, batch_size: int) -> dict[str, Any]:
    """A computation on random samples, and the batches to feed it with."""
    rng, shape = np.random.default_rng(0), (batch_size, *plan.input_shape)
    x = (
        rng.integers(plan.classes, size=shape)
        if plan.tokens
        else rng.integers(256, size=shape, dtype=np.uint8)
    )
    y = x if plan.tokens else np.arange(batch_size) % plan.classes
    data = data_set("random", (x, y), (x, y), plan.classes, tokens=plan.tokens)
    computation = GradientComputation(plan.build(), data)
    return {
        "compute": computation.compute,
        "batches": Batches(np.arange(batch_size), 0, "cost"),
        "size": batch_size,
    }
