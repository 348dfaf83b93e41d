"""The metrics of a published model on the test set, or on the validation set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from raysync.config import Experiment
from raysync.core.metrics import OF_THE_TEST_SET
from raysync.randomness import hashed_seed
from raysync.training.data.batch_reader import draws_of, read_in_order
from raysync.training.data.batch_structure import batch_to
from raysync.training.models.attributes import attributes_restored
from raysync.training.models.initial_model import InitialModel
from raysync.training.task import Average, Task, is_torchmetric, torchmetrics_of
from raysync.training.vectors.flat import FlatModel
from raysync.training.worker.device import use_tf32

WARM_UP_SAMPLES = 64


class ModelEvaluation:
    """The evaluations of one run, on Ray and in virtual time.

    `workers` processes read ahead samples that are read one by one.
    """

    def __init__(
        self, initial: InitialModel, module: nn.Module, experiment: Experiment, workers: int = 0
    ) -> None:
        self.model = FlatModel(module, found=initial.found)
        self._seed, self._needs_gradients = experiment.seed, initial.found.needs_gradients
        self.task, self._workers = initial.task, workers
        self._settings, self._test_samples = experiment.evaluation, experiment.data.test_samples
        self._test, self._validation = initial.test_set, initial.validation_set
        for metric in torchmetrics_of(self.task, module):
            metric.to(self.model.weights.device)

    def measure(self, weights: Tensor, is_last: bool) -> dict[str, float]:
        """Return the metrics of weights (P + Q,); the last ones on all samples and the test set."""
        limit = None if is_last else self._settings.samples
        if self._validation is None:
            return self._evaluate_on(weights, self._test, limit)
        metrics = self._evaluate_on(weights, self._validation, limit)
        if is_last:
            tested = self._evaluate_on(weights, self._test, None)
            metrics |= {f"{OF_THE_TEST_SET}{name}": value for name, value in tested.items()}
        return metrics

    def _evaluate_on(
        self, weights: Tensor, samples: Dataset[Any], limit: int | None
    ) -> dict[str, float]:
        if samples is self._test and self._test_samples is not None:
            limit = min(self._test_samples, limit or self._test_samples)
        # what a model draws is the same at each evaluation: they differ by the weights alone
        device = self.model.weights.device
        with draws_of(hashed_seed(self._seed, "evaluation"), device):
            return evaluate(
                self.model,
                weights,
                self.task,
                samples,
                self._settings.batch_size,
                limit,
                self._workers,
                needs_gradients=self._needs_gradients,
            )

    def warm_up(self) -> None:
        """Measure the first samples, so that kernels are loaded; it changes no later result."""
        samples = self._test if self._validation is None else self._validation
        batch = min(self._settings.batch_size, WARM_UP_SAMPLES)
        self._evaluate_on(self.model.initial(), samples, batch)


def evaluate(
    model: FlatModel,
    weights: Tensor,
    task: Task,
    samples: Dataset[Any],
    batch_size: int,
    limit: int | None = None,
    workers: int = 0,
    *,
    needs_gradients: bool = False,
) -> dict[str, float]:
    """Measure parameters and buffers (P + Q,) on samples, at most `limit` from the first.

    Returns:
        Name -> value: means over all samples (of an `Average`: over its count), and the results of
        torchmetrics; `loss` is always among them.
    """
    use_tf32(False)
    with torch.no_grad():
        # first with the weights before: what `eval` merges or caches, `train` takes back
        model.module.train()
        model.read_weights(weights)
        model.read_buffers(weights)
        model.module.eval()
    for metric in torchmetrics_of(task, model.module):
        metric.reset()
    device = model.weights.device
    size = len(samples)  # type: ignore[arg-type]
    batches = read_in_order(samples, task.collate, batch_size, min(size, limit or size), workers)
    moved = ((batch_to(batch, lambda tensor: tensor.to(device)), count) for batch, count in batches)
    # what a pass caches would be of older weights at the next evaluation
    with torch.set_grad_enabled(needs_gradients), attributes_restored(model.module):
        return over_batches(batch_values(task, model.module, moved))


def batch_values(
    task: Task, module: nn.Module, batches: Iterable[tuple[Any, int]]
) -> dict[str, list[Any]]:
    """Map names to an `Average`, or an object of torchmetrics, for each batch."""
    parts: dict[str, list[Any]] = {}
    for batch, count in batches:
        values = dict(task.metrics(module, batch))
        if "loss" not in values:
            values["loss"] = task.loss(module, batch)
        for name, value in values.items():
            parts.setdefault(name, []).append(_weighted(value, count))
    return parts


def _weighted(value: Any, count: int) -> Any:
    if isinstance(value, Average) or is_torchmetric(value):
        return value
    number = float(value.detach() if isinstance(value, Tensor) else value)
    return Average(number * count, count)


def over_batches(values: Mapping[str, list[Any]]) -> dict[str, float]:
    """Return the metrics over all batches; torchmetrics may compute several values."""
    results: dict[str, float] = {}
    for name, parts in values.items():
        if isinstance(parts[0], Average):
            count = sum(part.count for part in parts)
            results[name] = sum(part.total for part in parts) / count if count else float("nan")
            continue
        value = parts[0].compute()
        if isinstance(value, Mapping):
            results |= {str(key): float(number) for key, number in value.items()}
        else:
            results[name] = float(value)
    return results
