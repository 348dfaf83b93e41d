"""Metrics whose mean over samples depends on the composition of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import isclose, isnan

import torch
from torch import nn

from raysync.training.data.batch_reader import generators_restored, seed_generators
from raysync.training.evaluation import batch_values, over_batches
from raysync.training.models.initial_model import InitialModel
from raysync.training.task import Average
from raysync.training.trials.task_trial import (
    count_evaluated,
    evaluated_batches,
    reset_torchmetrics,
)

NOISE = 1e-3  # relative difference of two means by rounding, also in half precision


def batch_metrics(model: InitialModel, module: nn.Module, size: int) -> tuple[str, ...]:
    """Name the metrics that depend on the batch, such as a recall among its samples.

    It measures at most `size` samples in one batch, and in parts of different sizes.
    """
    size = min(size, count_evaluated(model))
    if size < 2:
        return ()
    was_training = module.training
    with generators_restored(), torch.set_grad_enabled(model.found.needs_gradients):
        module.eval()
        try:
            whole = _means(model, module, [size])
            parts = _means_of_parts(model, module, size)
            names = [name for name in parts if not _are_close(whole[name], parts[name])]
            if names:  # a metric that differs by the seed is random, so the batch may not matter
                reseeded = _means(model, module, [size], seed=2)
                names = [name for name in names if _are_close(whole[name], reseeded[name])]
        finally:
            reset_torchmetrics(model.task, module)
            module.train(was_training)
    return tuple(names)


def _means_of_parts(model: InitialModel, module: nn.Module, size: int) -> dict[str, float]:
    """Return the means over parts; none if a metric cannot be measured on so few samples."""
    for sizes in (_halving_sizes(size), [size - size // 2, size // 2]):
        with suppress(Exception):  # anything that the user's code raises
            return _means(model, module, sizes)
    return {}


def _halving_sizes(size: int) -> list[int]:
    """Return the sizes of a half, a quarter, an eighth, ...; the last two are small."""
    sizes = []  # a recall among few is far higher than among many
    while size > 3:
        sizes.append(size // 2)
        size -= size // 2
    return [*sizes, size]


def _means(
    model: InitialModel, module: nn.Module, sizes: Sequence[int], seed: int = 0
) -> dict[str, float]:
    batches = zip(evaluated_batches(model, sizes), sizes, strict=True)
    seed_generators(seed)
    values = batch_values(model.task, module, batches)
    return over_batches(
        {name: part for name, part in values.items() if isinstance(part[0], Average)}
    )


def _are_close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=NOISE, abs_tol=1e-6) or (isnan(one) and isnan(other))
