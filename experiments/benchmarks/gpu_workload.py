"""The models that `gpu_ways.py` trains, with random samples: what is learned does not matter."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from raysync import config
from raysync.training.data.data_set import Labelled, data_set
from raysync.training.models.transformer import CharLM
from raysync.training.preparation import TrainingPlan, prepare

LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 5e-4
TESTS = 16  # samples of the one evaluation, which is not what is measured


def images(shape: tuple[int, ...], count: int, classes: int) -> Labelled:
    """Draw random images and labels."""
    random = np.random.default_rng(0)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = random.integers(256, size=(count, *shape), dtype=np.uint8)
        return x, random.integers(classes, size=count)

    return data_set("random-images", drawn(count), drawn(TESTS), classes)


def tokens(length: int, count: int, vocabulary: int) -> Labelled:
    """Draw windows of random tokens."""
    random = np.random.default_rng(0)

    def drawn(count: int) -> tuple[np.ndarray, np.ndarray]:
        windows = random.integers(vocabulary, size=(count, length + 1))
        return windows[:, :-1], windows[:, 1:]

    return data_set("random-tokens", drawn(count), drawn(TESTS), vocabulary, tokens=True)


def gpt2(
    input_shape: tuple[int, ...], classes: int, width: int = 768, layers: int = 12, heads: int = 12
) -> nn.Module:
    """Build a language model of GPT-2's form, whose first and last layer share their weights."""
    model = CharLM(*input_shape, classes, width, layers, heads)
    last = nn.Linear(width, classes, bias=False)
    last.weight = model.tokens.weight
    model.head = nn.Sequential(model.head[0], last)
    return model


def small_gpt2(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build the same form for a trial on a CPU."""
    return gpt2(input_shape, classes, width=32, layers=2, heads=2)


@dataclass(frozen=True)
class Workload:
    """A model with its samples, and how a step is computed."""

    kind: str
    """The kind of device: cuda or cpu."""
    model: str | Callable[..., nn.Module]
    data: Callable[[], Labelled]
    batch_size: int
    """Of each worker."""
    steps: int
    """Of each worker in a run, if the command line does not say."""
    precision: str = "float32"
    augment: str = "none"

    @property
    def device(self) -> str:
        """The name in torch of the only device."""
        return "cuda:0" if self.kind == "cuda" else "cpu"

    def settings(self, steps: int, workers: int, gpus: float = 0) -> dict[str, Any]:
        """Return the settings of an experiment.

        Args:
            steps: of each worker.
            gpus: the share of the GPU that each worker reserves.
        """
        group = {"count": workers, "precision": self.precision, "gpus": gpus}
        return {
            "batch_size": self.batch_size,
            "data": {"augment": self.augment},
            "workers": [group],
            "update": {"lr": LR, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY},
            "workload": {"iterations_per_worker": steps},
            "evaluation": {"marks": 1, "batch_size": TESTS},
        }

    def prepared(self, steps: int, workers: int, gpus: float = 0, **more: Any) -> TrainingPlan:
        """Prepare a training; further settings go into the experiment."""
        settings = self.settings(steps, workers, gpus) | more
        named = isinstance(self.model, str)
        if named:
            settings["model"] = self.model
        experiment = config.validate(settings)
        return prepare(experiment, None if named else self.model, self.data())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return what the server of raysync does, in torch."""
        return torch.optim.SGD(model.parameters(), LR, MOMENTUM, weight_decay=WEIGHT_DECAY)


WORKLOADS = {
    "resnet18": Workload(
        kind="cuda",
        model="resnet18",
        data=partial(images, (3, 32, 32), 10_000, 10),
        batch_size=128,
        steps=300,
        precision="tf32",
        augment="crop-flip",
    ),
    # No augmentation: a CPU that crops 256 images of 224 pixels would be what is measured.
    "resnet50": Workload(
        kind="cuda",
        model="torchvision:resnet50",
        data=partial(images, (3, 224, 224), 2_048, 1_000),
        batch_size=256,
        steps=96,
        precision="bf16",
    ),
    "gpt2": Workload(
        kind="cuda",
        model=gpt2,
        data=partial(tokens, 1_024, 512, 50_257),
        batch_size=8,
        steps=96,
        precision="bf16",
    ),
}
SMALL_IMAGES = Workload(
    kind="cpu",
    model="mlp",
    data=partial(images, (3, 32, 32), 2_048, 10),
    batch_size=128,
    steps=40,
    augment="crop-flip",
)
TRIALS = {
    "resnet18": SMALL_IMAGES,
    "resnet50": SMALL_IMAGES,
    "gpt2": Workload(
        kind="cpu", model=small_gpt2, data=partial(tokens, 16, 256, 64), batch_size=8, steps=40
    ),
}
"""What `--kind cpu` trains in the place of each."""
