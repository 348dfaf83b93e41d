"""The cost of a step of a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from raysync.training.data.batch_reader import BatchReader
from raysync.training.data.batches import Batches
from raysync.training.data.data_set import data_set
from raysync.training.models.builtin import ModelPlan
from raysync.training.models.initial_model import InitialModel
from raysync.training.tasks.supervised import Classification
from raysync.training.worker.gradient import GradientComputation

STEP_BATCH = 128
COUNTED = 4  # samples whose operations are counted; the number grows in proportion


def measured_device() -> str:
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def step_s(model: InitialModel, batch_size: int = STEP_BATCH, device: str = "cpu") -> float:
    """Measure the median seconds of a forward and backward pass with one thread."""
    step = _step(model, batch_size, device)
    timer = Timer("compute(reader, 0, size)", globals=step, num_threads=1)
    return float(timer.blocked_autorange(min_run_time=0.5).median)


def step_flops(model: InitialModel, batch_size: int) -> float:
    """Count the floating-point operations of a forward and backward pass."""
    # torch counts matrix products, convolutions and attention: nearly all operations
    step = _step(model, COUNTED)
    with FlopCounterMode(display=False) as counter:
        step["compute"](step["reader"], 0, COUNTED)
    return float(counter.get_total_flops()) * batch_size / COUNTED


def _step(model: InitialModel, batch_size: int, device: str = "cpu") -> dict[str, Any]:
    samples = model.train_set
    batches = Batches(np.arange(min(batch_size, len(samples))), 0, "cost")  # type: ignore[arg-type]
    return {
        "compute": GradientComputation(model.build(0), model.task, [device]).compute,
        "reader": BatchReader(samples, model.task.collate, batches),
        "size": batch_size,
    }


def on_random_samples(plan: ModelPlan, samples: int = STEP_BATCH) -> InitialModel:
    """Return a model that classifies random samples, to measure it without a data set."""
    rng, shape = np.random.default_rng(0), (samples, *plan.input_shape)
    x = (
        rng.integers(plan.classes, size=shape)
        if plan.tokens
        else rng.integers(256, size=shape, dtype=np.uint8)
    )
    y = x if plan.tokens else np.arange(samples) % plan.classes
    data = data_set("random", (x, y), (x, y), plan.classes, tokens=plan.tokens)
    return InitialModel(Classification(plan, data))
