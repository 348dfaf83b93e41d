"""Try a user's task on a few samples before a run starts, where mistakes can still be said in a
line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from traceback import extract_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from raysync.core.metrics import LOSS, RESERVED, known
from raysync.errors import ConfigError, unknown_name
from raysync.training.batch_reader import SeededSamples, generators_restored
from raysync.training.initial_model import InitialModel
from raysync.training.task import Average, Task, is_torchmetric, torchmetrics_of

TRIED = 32
"""The largest number of samples that are tried."""


def try_task(
    model: InitialModel, module: nn.Module, indices: Sequence[int]
) -> tuple[str, ...] | None:
    """Read a few samples, and compute loss and metrics with a fresh module.

    Args:
        model: its task is the user's own, or has samples that are read one by one.
        module: as the model builds it; its buffers may change.
        indices: of training samples that will be in one batch.

    Returns:
        The names of the metrics; None if one of them is a collection, which only an evaluation
        opens.

    Raises:
        ConfigError: samples do not collate, the loss is no finite scalar with a gradient, a metric
            is no number, or the primary metric is missing.
    """
    task = model.task
    with generators_restored():
        _try_loss(task, module.train(), first_batch(model, indices))
        with torch.no_grad():
            evaluated = _first_evaluated(model, len(indices))
            names = _try_metrics(task, module.eval(), evaluated)
    for metric in torchmetrics_of(task, module):
        metric.reset()
    module.train()
    return names


def first_batch(model: InitialModel, indices: Sequence[int]) -> Any:
    """Return the training samples of these indices as a batch.

    Raises:
        ConfigError: they do not collate; it names two that do not go together.
    """
    return _batch_of(model.task, model.train_set, indices, "training")


def _first_evaluated(model: InitialModel, size: int) -> Any:
    """Return the first samples that an evaluation meets as a batch."""
    validation = model.validation_set
    samples, part = (model.test_set, "test") if validation is None else (validation, "validation")
    count = min(size, len(samples))  # type: ignore[arg-type]
    return _batch_of(model.task, samples, list(range(count)), part)


def _batch_of(task: Task, samples: Dataset[Any], indices: Sequence[int], part: str) -> Any:
    if (read_batch := getattr(samples, "read_batch", None)) is not None:
        return _run(task, "read_batch", lambda: read_batch(indices, 0))
    seeded = SeededSamples(samples)
    drawn = [
        _run(task, f"sample {index} of the {part} set", lambda index=index: seeded[0, index])  # type: ignore[misc]
        for index in indices
    ]
    try:
        return task.collate(list(drawn))
    except Exception as error:  # anything that the user's collate raises
        first, pair = int(indices[0]), ""
        for index, sample in zip(indices[1:], drawn[1:], strict=True):
            if not _collates(task, [drawn[0], sample]):
                pair = f" {first} and {int(index)}"
                break
        raise ConfigError(
            f"task {task.name}: {part} samples{pair} do not collate into a batch"
            f" ({_reason(error)}). Give the task a method `collate`, such as one that pads."
        ) from error


def _collates(task: Task, samples: list[Any]) -> bool:
    try:
        task.collate(samples)
    except Exception:  # whatever it is, they do not collate
        return False
    return True


def _run(task: Task, what: str, function: Callable[[], Any]) -> Any:
    return run_users_code(function, f"task {task.name}: {what}")


def _try_loss(task: Task, module: nn.Module, batch: Any) -> None:
    loss = _run(task, "loss", lambda: task.loss(module, batch))
    where = f"task {task.name}: loss"
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ConfigError(
            f"{where}: must be a scalar tensor, the mean over the batch's samples; got {got}."
        )
    if not bool(torch.isfinite(loss)):
        raise ConfigError(
            f"{where}: is {loss.item()} on the first batch, with the initial weights."
        )
    if not loss.requires_grad:
        raise ConfigError(f"{where}: does not depend on any trainable parameter of the model.")


def _try_metrics(task: Task, module: nn.Module, batch: Any) -> tuple[str, ...] | None:
    values = _run(task, "metrics", lambda: task.metrics(module, batch))
    where = f"task {task.name}: metrics"
    if not isinstance(values, Mapping):
        raise ConfigError(
            f"{where}: must return a mapping, name -> value, got {type(values).__name__}."
        )
    for name, value in values.items():
        if not isinstance(name, str) or name in RESERVED:
            raise ConfigError(f"{where}: {name!r} cannot be the name of a metric.")
        if not _is_measured(value):
            raise ConfigError(
                f"{where}: {name}: must be a number or a scalar tensor, a raysync.Average, or an"
                f" object of torchmetrics; got {type(value).__name__}."
            )
    if any(hasattr(value, "items") for value in values.values()):
        return None
    names = tuple(dict.fromkeys([*values, LOSS]))
    if task.primary not in known(names):
        raise unknown_name("metric", task.primary, names, where=f"task {task.name}: primary")
    return names


def _is_measured(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return isinstance(value, int | float | Average) or is_torchmetric(value)


def run_users_code(function: Callable[[], Any], where: str) -> Any:
    """Call code of the user's.

    Raises:
        ConfigError: it raised an error; the message has its line.
    """
    try:
        return function()
    except ConfigError:
        raise
    except Exception as error:  # anything that the user's code raises
        last = extract_tb(error.__traceback__)[-1]
        raise ConfigError(f"{where}: {_reason(error)} ({last.filename}:{last.lineno}).") from error


def _reason(error: Exception) -> str:
    first = (str(error) or type(error).__name__).splitlines()[0]
    return f"{type(error).__name__}: {first:.200}"
