"""The contract of a task: what is trained, on which samples, towards which loss, measured how."""

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
    """A metric that is a mean over something other than samples, such as the tokens of a batch."""

    total: float
    """The sum over the batch."""
    count: float
    """The number of things that were summed."""


class Task(ABC):
    """A model, its data, its loss and its metrics, in plain PyTorch.

    A user's task derives from this class and gives at least a model, two data sets, and either
    `loss` or `criterion`:

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

            def metrics(self, model, batch):
                ...

    Every actor of a run has a copy of the task, so it must be picklable, and what is large belongs
    into NumPy arrays (of which a node keeps one copy) or behind its data sets, which are read as
    they are needed.

    The randomness of a sample (augmentation) may come from torch's, NumPy's or Python's global
    generator: these are seeded for each sample, as a function of the run's seed, the worker, the
    number of the batch, and the sample's place in it. So two paradigms meet the same batches.
    """

    primary: str = "loss"
    """The name of the metric that matters most: tables rank by it."""
    higher_is_better: bool = False
    """Whether a larger value of the primary metric is better."""

    @property
    def name(self) -> str:
        """The name of the task in records; its class, unless this says otherwise."""
        return type(self).__name__

    @property
    def model_name(self) -> str:
        """The name of the model in records."""
        return self.name

    @property
    def data_name(self) -> str:
        """The name of the data set in records; "" where that of the task says it."""
        return ""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Build the model with its initial weights, on the CPU.

        torch's generator is seeded before, so each actor builds the same. Only parameters that
        require a gradient are trained, and travel; they must be float32.
        """

    @abstractmethod
    def train_set(self) -> Dataset[Any]:
        """Return the samples to train on: a map-style data set, with `__len__` and `__getitem__`.

        If it has a method `read_batch(indices, seed)`, that one reads whole batches, and `collate`
        is not called; where a batch is split (devices, micro-batches), each of its tensors is.
        """

    @abstractmethod
    def test_set(self) -> Dataset[Any]:
        """Return the samples to evaluate on."""

    def validation_set(self) -> Dataset[Any] | None:
        """Return the samples that the model is evaluated on while it is trained; None for the test
        set. With a validation set, the test set is used once, at the end.
        """
        return None

    def collate(self, samples: list[Any]) -> Any:
        """Make a batch of samples; torch's `default_collate`, unless this says otherwise."""
        return default_collate(samples)

    def labels(self, samples: Dataset[Any]) -> Sequence[int]:
        """Return the class of each training sample, for `data.partition: dirichlet`: the attribute
        `targets` of the data set, as torchvision's have it, unless this says otherwise.

        Raises:
            ConfigError: there is no such attribute.
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
        """Return what the model is called with: the first element of the batch, unless this says
        otherwise.
        """
        return batch[0]

    def criterion(self, output: Any, batch: Any) -> Tensor:
        """Return the loss of the model's output, a scalar: the mean over the batch's samples.

        A task that gives this, and `inputs`, can also be cut into stages (paradigm `decoupled`).
        """
        raise NotImplementedError(f"{self.name} has neither `loss` nor `criterion`")

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the loss of a batch, a scalar: the mean over the batch's samples."""
        return self.criterion(model(self.inputs(batch)), batch)

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Measure a model, in evaluation mode and without gradients, on a batch.

        Returns:
            Name -> a number or a scalar tensor, the mean over the batch's samples; or an `Average`;
            or an object of torchmetrics that is an attribute of the task and has been updated with
            this batch. `loss` is measured by `loss` if it is not among them.
        """
        return {}

    def update(self, model: nn.Module, file: Update, epochs: float) -> Mapping[str, Any]:
        """Return settings of `update` that belong to the task, such as an optimizer and its
        learning rate. They take the place of defaults: what the experiment file names stays. With
        an optimizer or a learning rate, `lr_scaling` is `none` unless one of both says otherwise.

        Args:
            model: as `build_model` returns it.
            file: the settings of the experiment file; `model_fields_set` has those that it names.
            epochs: the passes over the training set that make up the workload.
        """
        return {}

    def remarks(self, model: nn.Module) -> Sequence[str]:
        """Return sentences that the user should read before a run, such as what of the task is not
        carried out.
        """
        return ()

    @property
    def can_be_cut(self) -> bool:
        """Whether the loss is a function of the model's output, so that stages can compute it."""
        return type(self).loss is Task.loss


def is_torchmetric(value: object) -> bool:
    """Say whether a value is an object of torchmetrics, which is not imported for that."""
    return isinstance(value, nn.Module) and all(
        callable(getattr(value, method, None)) for method in ("update", "compute", "reset")
    )


def torchmetrics_of(task: Task, model: nn.Module) -> list[Any]:
    """Return the objects of torchmetrics that are attributes of a task, or parts of its model."""
    return [value for value in (*vars(task).values(), *model.modules()) if is_torchmetric(value)]
