"""The contract of a task: model, data, loss and metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from raysync.config import Update
from raysync.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Average:
    """A mean over something other than samples, such as the tokens of a batch."""

    total: float  # the sum over the batch
    count: float  # the number of its terms


class Task(ABC):
    """A model, its data, its loss and its metrics, in plain PyTorch.

    A user's task gives at least a model, two data sets, and either `loss` or `criterion`:

        class Segmentation(raysync.Task):
            primary, higher_is_better = "iou", True

            def build_model(self):
                return UNet(classes=4)

            def train_set(self):
                return Tiles("train", transform=augment)

            def test_set(self):
                return Tiles("test")

            def criterion(self, output, batch):
                return cross_entropy(output, batch[1])

    Every actor has a copy of the task, so it must be picklable; large data belong into NumPy arrays
    (one copy per node) or behind its data sets, which are read when needed.

    torch's, NumPy's and Python's global generators are seeded for each sample, as a function of
    run, worker, batch and place in it. So augmentation is the same under each paradigm.
    """

    primary: str = "loss"  # the metric that tables rank by
    # None: as is known of accuracy, loss and perplexity; of other metrics smaller is better
    higher_is_better: bool | None = None

    @property
    def name(self) -> str:
        """The name of the task in records; by default its class."""
        return type(self).__name__

    @property
    def model_name(self) -> str:
        """The name of the model in records."""
        return self.name

    @property
    def data_name(self) -> str:
        """The name of the data set in records; "" if the task's name says it."""
        return ""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Build the model with its initial weights, on the CPU, from torch's seeded generator.

        Only parameters that require a gradient are trained, and travel; they must be float32.
        """

    @abstractmethod
    def train_set(self) -> Dataset[Any]:
        """Return the samples to train on: a map-style data set, with `__len__` and `__getitem__`.

        If it has a method `read_batch(indices, seed)`, this reads whole batches instead of
        `collate`.
        """

    @abstractmethod
    def test_set(self) -> Dataset[Any]:
        """Return the samples to evaluate on."""

    def validation_set(self) -> Dataset[Any] | None:
        """Return the samples for evaluations during training; None: the test set.

        With them the test set is used once, at the end.
        """
        return None

    def sampler(self, samples: Dataset[Any]) -> Any:
        """Return what is drawn of the training set: a sampler of torch, or indices; None: all.

        It says which samples, or with which weights (torch's `WeightedRandomSampler`); the order,
        and who draws them, is a function of (seed, worker, number of the batch). It is read once
        before a run: one that gives other samples in each pass is refused.
        """
        return None

    def collate(self, samples: list[Any]) -> Any:
        """Make a batch of samples; by default with torch's `default_collate`."""
        return default_collate(samples)

    def labels(self, samples: Dataset[Any]) -> Sequence[int]:
        """Return the class of each training sample, for `data.partition: dirichlet`.

        By default it returns the attribute `targets` of the data set, and raises `ConfigError`
        without one.
        """
        targets = getattr(samples, "targets", None)
        if targets is None:
            raise ConfigError(
                "data.partition: dirichlet deals samples out by their class, and the training set"
                f" of {self.name} has no attribute `targets`; give the task a method `labels`.\n"
                "Allowed otherwise: iid, shared."
            )
        return targets  # type: ignore[no-any-return]

    def inputs(self, batch: Any) -> Any:
        """Return the argument of the model; by default the first element of the batch."""
        return batch[0]

    def criterion(self, output: Any, batch: Any) -> Tensor:
        """Return the loss of the model's output, a scalar: the mean over the batch's samples.

        A task with this, and `inputs`, can also be cut into stages (paradigm `decoupled`).
        """
        raise NotImplementedError(f"{self.name} has neither `loss` nor `criterion`")

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch, a scalar: the mean over the batch's samples."""
        return self.criterion(model(self.inputs(batch)), batch)

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Measure a model, in evaluation mode and without gradients, on a batch.

        Returns:
            Name -> a number or a scalar tensor, the mean over the batch's samples; or an `Average`;
            or an object of torchmetrics, an attribute of the task that has been updated with this
            batch. `loss` is added if it is missing.
        """
        return {}

    def update(self, model: nn.Module, file: Update, epochs: float) -> Mapping[str, Any]:
        """Return settings of `update` that belong to the task, such as an optimizer and its rate.

        They replace defaults, not settings of the experiment file. With an optimizer or a learning
        rate, `lr_scaling` is `none` unless either sets it.

        Args:
            file: the settings of the experiment file; `model_fields_set` names them.
            epochs: the passes over the training set in the workload.
        """
        return {}

    def remarks(self, model: nn.Module) -> Sequence[str]:
        """Return sentences for the user before a run, such as ignored parts of the task."""
        return ()

    @property
    def can_be_cut(self) -> bool:
        """Whether the loss is a function of the model's output, so that stages can compute it."""
        return type(self).loss is Task.loss


def is_torchmetric(value: object) -> bool:
    """Whether a value is an object of torchmetrics, without importing it."""
    return isinstance(value, nn.Module) and all(
        callable(getattr(value, method, None)) for method in ("update", "compute", "reset")
    )


def torchmetrics_of(task: Task, model: nn.Module) -> list[Any]:
    """Return the torchmetrics objects among a task's attributes or its model's parts."""
    return [value for value in (*vars(task).values(), *model.modules()) if is_torchmetric(value)]
