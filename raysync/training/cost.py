"""What a step of a model costs on the machine at hand."""

from __future__ import annotations

import numpy as np
from torch.utils.benchmark import Timer

from raysync.training.data import Batches, data_set
from raysync.training.gradient import GradientComputation
from raysync.training.models import ModelPlan

STEP_BATCH = 128


def step_s(plan: ModelPlan) -> float:
    """Seconds of forward and backward of a batch of 128 random samples, one thread: a median."""
    rng, shape = np.random.default_rng(0), (STEP_BATCH, *plan.input_shape)
    x = rng.integers(plan.classes, size=shape) if plan.tokens else rng.integers(256, size=shape, dtype=np.uint8)
    y = x if plan.tokens else np.arange(STEP_BATCH) % plan.classes
    data = data_set("random", (x, y), (x, y), plan.classes, tokens=plan.tokens)
    computation = GradientComputation(plan.build(), data, Batches(np.arange(STEP_BATCH), 0, "cost"))
    timer = Timer("compute(0, size)", globals={"compute": computation.compute, "size": STEP_BATCH}, num_threads=1)
    return float(timer.blocked_autorange(min_run_time=0.5).median)
