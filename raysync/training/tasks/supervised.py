"""The built-in tasks: samples with labels, for a model that is built for their shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import Dataset
from typing_extensions import override

from raysync.training.data.batches import Array
from raysync.training.models.builtin import ModelPlan
from raysync.training.task import Average, Task


class Splits(Protocol):
    """A data set with its parts: `data.DataSet`, in memory, or `data.LazyDataSet`."""

    @property
    def name(self) -> str:
        """The name in records."""

    def part(self, part: str, augment: str = "none") -> Dataset[Any] | None:
        """Return `train`, `validation` (None if there is none) or `test`."""

    @property
    def sampler(self) -> Any:
        """What chooses training samples; None: all are drawn."""

    @property
    def regression(self) -> bool:
        """Whether labels are numbers to predict, not classes."""

    @property
    def train_labels(self) -> Sequence[int] | Array:
        """The labels of the training samples."""


class Supervised(Task):
    """A model, as a plan, and samples (x, y)."""

    metric_names: ClassVar[tuple[str, ...]] = ("accuracy", "loss")

    def __init__(self, plan: ModelPlan, data: Splits, augment: str = "none") -> None:
        self.plan, self.data, self._augment = plan, data, augment

    @property
    @override
    def model_name(self) -> str:
        return self.plan.name

    @property
    @override
    def data_name(self) -> str:
        return self.data.name

    @override
    def build_model(self) -> nn.Module:
        return self.plan.build()

    @override
    def train_set(self) -> Dataset[Any]:
        return self._part("train", self._augment)

    @override
    def sampler(self, samples: Dataset[Any]) -> Any:
        return self.data.sampler

    @override
    def test_set(self) -> Dataset[Any]:
        return self._part("test")

    @override
    def validation_set(self) -> Dataset[Any] | None:
        return self.data.part("validation")

    def _part(self, part: str, augment: str = "none") -> Dataset[Any]:
        samples = self.data.part(part, augment)
        assert samples is not None, f"a data set without a part {part}"
        return samples

    @override
    def labels(self, samples: Dataset[Any]) -> Sequence[int]:
        return self.data.train_labels  # type: ignore[return-value]


class Classification(Supervised):
    """One label a sample; cross-entropy, in nats."""

    primary = "accuracy"
    higher_is_better = True

    @property
    @override
    def name(self) -> str:
        return "classification"

    @override
    def criterion(self, output: Tensor, batch: Any) -> Tensor:
        return cross_entropy(output, batch[1])

    @override
    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Return accuracy (a fraction of 1) and mean cross-entropy (nats), over all labels."""
        x, y = batch
        logits = model(x)
        correct = int((logits.argmax(dim=1) == y).sum())
        loss = float(cross_entropy(logits, y, reduction="sum"))
        return {"accuracy": Average(correct, y.numel()), "loss": Average(loss, y.numel())}


class LanguageModel(Classification):
    """One label a token, the one that follows: means are over tokens."""

    primary = "perplexity"
    higher_is_better = False

    @property
    @override
    def name(self) -> str:
        return "language-model"


class Regression(Supervised):
    """One or several numbers to predict for a sample; the loss is the mean squared error."""

    primary = "mae"
    metric_names = ("loss", "mae")

    @property
    @override
    def name(self) -> str:
        return "regression"

    @override
    def criterion(self, output: Tensor, batch: Any) -> Tensor:
        return mse_loss(output, _targets(batch, output))

    @override
    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Return mean squared and mean absolute error, over all numbers."""
        output = model(self.inputs(batch))
        error = output - _targets(batch, output)
        return {
            "loss": Average(float(torch.sum(error**2)), error.numel()),
            "mae": Average(float(torch.sum(error.abs())), error.numel()),
        }


def _targets(batch: Any, output: Tensor) -> Tensor:
    """Return the targets in the shape (N, K) and the type of the output."""
    targets: Tensor = batch[1]
    return targets.reshape(output.shape).to(output.dtype)


TASKS: dict[str, type[Supervised]] = {
    "classification": Classification,
    "language-model": LanguageModel,
    "regression": Regression,
}
