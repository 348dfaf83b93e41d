"""The cost of a step of a model."""

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
"""The samples of the batch whose operations are counted; their number grows in proportion."""


def step_s(plan: ModelPlan, batch_size: int = STEP_BATCH) -> float:
    """Measure the seconds of a forward and backward pass of random samples on this machine with one
    thread: a median.
    """
    timer = Timer("compute(batches, 0, size)", globals=_step(plan, batch_size), num_threads=1)
    return float(timer.blocked_autorange(min_run_time=0.5).median)


def step_flops(plan: ModelPlan, batch_size: int) -> float:
    """Return the floating-point operations of a forward and backward pass, as torch counts them.

    torch counts matrix products, convolutions and attention, which have nearly all of them.
    """
    step = _step(plan, COUNTED)
    with FlopCounterMode(display=False) as counter:
        step["compute"](step["batches"], 0, COUNTED)
    return float(counter.get_total_flops()) * batch_size / COUNTED


def _step(plan: ModelPlan, batch_size: int) -> dict[str, Any]:
    """Return a computation on random samples, and the batches for it."""
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
