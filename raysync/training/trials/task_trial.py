"""Tries a user's task on a few samples before a run starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from raysync.config import Experiment
from raysync.core.metrics import LOSS, RESERVED, known
from raysync.errors import ConfigError, unknown_name
from raysync.training.data.batch_reader import SeededSamples, generators_restored, seed_generators
from raysync.training.data.batches import Batches
from raysync.training.models.initial_model import InitialModel
from raysync.training.task import Average, Task, is_torchmetric, torchmetrics_of
from raysync.training.tasks.supervised import Supervised
from raysync.training.trials.inventory import Inventory, is_equal
from raysync.training.vectors.module_state import ModuleState
from raysync.users_code import reason_of, users_code

TRIED = 32  # the most samples that are tried
FEW = 4  # samples that show whether a loss is a sum
STEP = 1e-3  # the learning rate of the trial
MARGIN = 0.02  # of a loss, in which a sum and a mean cannot meet


def try_task(
    model: InitialModel, module: nn.Module, indices: Sequence[int]
) -> tuple[tuple[str, ...] | None, ModuleState]:
    """Read a few samples, make two training steps with a module, and measure it.

    Args:
        module: fresh, in training mode; what a step changes in it stays changed.

    Returns:
        The names of the metrics; None if one is a collection, which only an evaluation opens. And
        what the steps have changed beside gradients.

    Raises:
        ConfigError: samples do not collate, the loss is no finite scalar with a gradient, a metric
            is no number, the primary metric is missing, or a step changes what cannot be carried.
    """
    task, inventory = model.task, Inventory(module, model.task)
    with generators_restored():
        _try_steps(task, module, first_batch(model, indices), inventory)
        found = inventory.found
        size = min(len(indices), count_evaluated(model))
        [evaluated] = evaluated_batches(model, [size])
        names, needs_gradients = _try_metrics_once(task, module.eval(), evaluated)
        found = replace(
            found,
            draws_alone=not _reads_alike(model, indices[:2]),
            sums=_is_sum(model, module, indices[:FEW]),
            needs_gradients=needs_gradients,
        )
    reset_torchmetrics(task, module)
    inventory.restore_task()
    return names, found


def _try_steps(task: Task, module: nn.Module, batch: Any, inventory: Inventory) -> None:
    """Compute two gradients, and compare everything with what there was before."""
    for number in range(2):
        seed_generators(number)
        loss = _try_loss(task, module, batch)
        if not bool(torch.isfinite(loss)):
            break  # of raysync's own data: the run tells which sample it is
        inventory.refuse_foreign(loss)
        with users_code(f"task {task.name}: loss: backward pass"):
            loss.backward()  # type: ignore[no-untyped-call]
        inventory.compare()
        _step(module)
        inventory.take_weights()


def _step(module: nn.Module) -> None:
    """Move the weights a little: a copy of theirs, such as a teacher's, is seen to follow."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.data -= STEP * parameter.grad.to_dense()
        parameter.grad = None


def _is_sum(model: InitialModel, module: nn.Module, indices: Sequence[int]) -> bool:
    """Whether the loss of a batch is the sum of its halves' losses, instead of their mean."""
    half = len(indices) // 2
    if not half:
        return False
    losses = []
    for part in (indices[: 2 * half], indices[:half], indices[half : 2 * half]):
        batch = first_batch(model, part)
        try:
            seed_generators(0)
            losses.append(float(model.task.loss(module, batch).detach()))
        except Exception:  # not every loss takes so few samples, or a model in evaluation mode
            return False
    whole, first, second = losses
    total = first + second
    is_small = abs(total) < MARGIN * max(map(abs, losses))
    return not is_small and abs(whole - total) < MARGIN * abs(total)


def _reads_alike(model: InitialModel, indices: Sequence[int]) -> bool:
    """Whether training samples are the same when they are read twice with one seed."""
    samples = model.train_set
    if getattr(samples, "read_batch", None) is not None:
        return True
    seeded = SeededSamples(samples)
    with users_code(f"task {model.task.name}: a sample of the training set"):
        return all(is_equal(seeded[0, index], seeded[0, index]) for index in indices)


def _try_metrics_once(
    task: Task, module: nn.Module, batch: Any
) -> tuple[tuple[str, ...] | None, bool]:
    """Return the names of the metrics, and whether measuring needs gradients."""
    try:
        with torch.no_grad():
            return _try_metrics(task, module, batch), False
    except ConfigError as error:
        if not isinstance(error.__cause__, RuntimeError):
            raise
        try:
            with torch.enable_grad():
                return _try_metrics(task, module, batch), True
        except ConfigError:
            raise error from error.__cause__


def _try_loss(task: Task, module: nn.Module, batch: Any) -> Tensor:
    where = f"task {task.name}: loss"
    with users_code(where):
        loss = task.loss(module, batch)
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(
            f"{where}: must be a scalar tensor, the mean over the batch's samples; got {got}."
        )
    if not bool(torch.isfinite(loss)) and not isinstance(task, Supervised):
        raise ConfigError(
            f"{where}: is {loss.item()} on the first batch, with the initial weights."
        )
    if not loss.requires_grad:
        raise ConfigError(f"{where}: does not depend on any trainable parameter of the model.")
    return loss


def _try_metrics(task: Task, module: nn.Module, batch: Any) -> tuple[str, ...] | None:
    where = f"task {task.name}: metrics"
    with users_code(where):
        values = task.metrics(module, batch)
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{where}: must return a mapping, name -> value, got {type(values).__name__}."
        )
    for name, value in values.items():
        if not isinstance(name, str) or name in RESERVED:
            raise ConfigError(f"{where}: {name!r} cannot be the name of a metric.")
        if not _is_metric_value(value):
            raise ConfigError(
                f"{where}: {name}: must be a number or a scalar tensor, a raysync.Average, or an"
                f" object of torchmetrics; got {type(value).__name__}."
            )
    if LOSS not in values:
        with users_code(f"task {task.name}: loss in an evaluation"):
            task.loss(module, batch)
    if any(hasattr(value, "items") for value in values.values()):
        return None
    names = tuple(dict.fromkeys([*values, LOSS]))
    if task.primary not in known(names):
        raise unknown_name("metric", task.primary, names, where=f"task {task.name}: primary")
    return names


def _is_metric_value(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return isinstance(value, int | float | Average) or is_torchmetric(value)


def reset_torchmetrics(task: Task, module: nn.Module) -> None:
    """Reset the task's objects of torchmetrics."""
    for metric in torchmetrics_of(task, module):
        metric.reset()


def why_too_few(model: InitialModel, module: nn.Module, indices: Sequence[int]) -> str:
    """Explain why the loss of these samples alone, or its gradient, fails; "" if it does not."""
    task = model.task
    parameters = [p for p in module.parameters() if p.requires_grad]
    with generators_restored():
        batch = first_batch(model, indices)
        try:
            loss = task.loss(module.train(), batch)
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        except Exception as error:  # anything that the user's code raises
            return reason_of(error)
        finally:
            reset_torchmetrics(task, module)
    computed = [loss, *(gradient for gradient in gradients if gradient is not None)]
    is_finite = all(bool(torch.isfinite(tensor).all()) for tensor in computed)
    return "" if is_finite else "the loss or its gradient is not finite"


def tried_indices(experiment: Experiment, count: int, size: int) -> list[int]:
    """Return the indices of training samples to try, always the same ones."""
    batches = Batches(np.arange(count), experiment.seed, "tried")
    return [int(index) for index in batches.indices(0, size)]


def first_batch(model: InitialModel, indices: Sequence[int]) -> Any:
    """Return the training samples of these indices as a batch."""
    return _batch_of(model.task, model.train_set, indices, "training")


def evaluated_batches(model: InitialModel, sizes: Sequence[int]) -> list[Any]:
    """Return the first samples of an evaluation, in batches of these sizes."""
    validation = model.validation_set
    samples, part = (model.test_set, "test") if validation is None else (validation, "validation")
    bounds = pairwise(accumulate(sizes, initial=0))
    return [_batch_of(model.task, samples, range(*pair), part) for pair in bounds]


def count_evaluated(model: InitialModel) -> int:
    """Count the samples of an evaluation during training."""
    samples = model.test_set if model.validation_set is None else model.validation_set
    return len(samples)  # type: ignore[arg-type]


def _batch_of(task: Task, samples: Dataset[Any], indices: Sequence[int], part: str) -> Any:
    if (read_batch := getattr(samples, "read_batch", None)) is not None:
        with users_code(f"task {task.name}: read_batch"):
            return read_batch(np.asarray(indices), 0)
    seeded, drawn = SeededSamples(samples), []
    for index in indices:
        with users_code(f"task {task.name}: sample {index} of the {part} set"):
            drawn.append(seeded[0, index])
    try:
        return task.collate(list(drawn))
    except Exception as error:  # anything that the user's collate raises
        first, pair = int(indices[0]), ""
        for index, sample in zip(indices[1:], drawn[1:], strict=True):
            if not _collates(task, [drawn[0], sample]):
                pair = f" {first} and {int(index)}"
                break
        raise ConfigError(
            f"task {task.name}: {part} samples{pair} do not collate into a batch:"
            f" {reason_of(error)}. Give the task a method `collate`, such as one that pads."
        ) from error


def _collates(task: Task, samples: list[Any]) -> bool:
    try:
        task.collate(samples)
    except Exception:  # whatever it is, they do not collate
        return False
    return True
