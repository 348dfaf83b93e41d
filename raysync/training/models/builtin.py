"""The models, built and checked against the data before a run starts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from raysync.errors import ConfigError, unknown_name
from raysync.paradigms.class_loading import call_checked, load_reference
from raysync.training.adapter_registry import model_adapter
from raysync.training.models import resnet
from raysync.training.models.convex import logistic_regression
from raysync.training.models.transformer import char_lm
from raysync.users_code import users_code

Shape = tuple[int, ...]  # of one sample: (C, H, W) for images, (T,) for tokens

# a registered name, `package.module:function`, `timm:NAME`, `torchvision:NAME`, a module, or a
# function that returns one
ModelSource = str | nn.Module | Callable[..., nn.Module]


def mlp(input_shape: Shape, classes: int, *, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Fully connected layers with ReLU between them; `hidden` gives their widths."""
    if not isinstance(hidden, Sequence) or not all(
        isinstance(width, int) and width > 0 for width in hidden
    ):
        raise ValueError(f"hidden: a list of widths, such as [128]; got {hidden!r}")
    widths = [torch.Size(input_shape).numel(), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for wide, narrow in pairwise(widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def convnet(input_shape: Shape, classes: int) -> nn.Module:
    """The MNIST network of the hybrid paper's program: conv 1->3 k3, max-pool 3, FC 192->10."""
    channels, height, width = input_shape
    features = 3 * ((height - 2) // 3) * ((width - 2) // 3)
    return nn.Sequential(
        nn.Conv2d(channels, 3, kernel_size=3),
        nn.MaxPool2d(3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(features, classes),
    )


def _pooled(convolution: nn.Conv2d) -> tuple[nn.Module, ...]:
    """Return a convolution with its ReLU and a pooling that halves height and width."""
    return convolution, nn.ReLU(), nn.MaxPool2d(2)


def lenet(input_shape: Shape, classes: int) -> nn.Module:
    """LeNet-5's form: 6 and 16 filters of 5x5, FC 120, 84, classes."""
    channels, height, width = input_shape
    features = 16 * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
    return nn.Sequential(
        *_pooled(nn.Conv2d(channels, 6, kernel_size=5)),
        *_pooled(nn.Conv2d(6, 16, kernel_size=5)),
        nn.Flatten(),
        nn.Linear(features, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


class ChannelsLast(nn.Module):
    """Moves the channels innermost in memory, which speeds up batch-norm and pooling on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=torch.channels_last)


def fashion_cnn(
    input_shape: Shape, classes: int, *, filters: Sequence[int] = (16, 32), momentum: float = 0.1
) -> nn.Module:
    """Two 5x5 convolutions with batch-norm and max-pool, one FC (hybrid parameter server, 3.2).

    Args:
        momentum: of batch-norm's statistics; with 0 they stay mean 0 and variance 1, as on a server
            that receives only gradients. Evaluation uses them, training does not.
    """
    channels, height, width = input_shape
    first, second = filters
    return nn.Sequential(
        nn.Conv2d(channels, first, kernel_size=5, padding=2),
        ChannelsLast(),
        nn.BatchNorm2d(first, momentum=momentum),
        nn.MaxPool2d(2),
        nn.ReLU(),  # after the pooling: the same values, a quarter of the work
        nn.Conv2d(first, second, kernel_size=5, padding=2),
        nn.BatchNorm2d(second, momentum=momentum),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(second * (height // 4) * (width // 4), classes),
    )


def alexnet_small(input_shape: Shape, classes: int) -> nn.Module:
    """A small AlexNet, 3 convolutions and 2 FC layers with 94 % of the parameters (LagTuner, 5.1).

    LagTuner gives no widths. Ours: 32 and 64 filters of 5x5 and 128 of 3x3, each with ReLU and
    max-pool 2; FC 1024.
    """
    channels, height, width = input_shape
    return nn.Sequential(
        *_pooled(nn.Conv2d(channels, 32, kernel_size=5, padding=2)),
        *_pooled(nn.Conv2d(32, 64, kernel_size=5, padding=2)),
        *_pooled(nn.Conv2d(64, 128, kernel_size=3, padding=1)),
        nn.Flatten(),
        nn.Linear(128 * (height // 8) * (width // 8), 1024),
        nn.ReLU(),
        nn.Linear(1024, classes),
    )


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "convnet": convnet,
    "lenet": lenet,
    "fashion-cnn": fashion_cnn,
    "alexnet-small": alexnet_small,
    "resnet20": resnet.resnet20,
    "resnet32": resnet.resnet32,
    "resnet56": resnet.resnet56,
    "resnet110": resnet.resnet110,
    "resnet18": resnet.resnet18,
    "resnet50": resnet.resnet50,
    "char-lm": char_lm,
    "logistic-regression": logistic_regression,
}


# shape of samples with which a model is listed; (3, 32, 32) for all others
MADE_FOR: dict[str, Shape] = {
    "mlp": (1, 8, 8),
    "convnet": (1, 28, 28),
    "fashion-cnn": (1, 28, 28),
    "char-lm": (64,),
    "logistic-regression": (1, 8, 8),
}

FOR_TOKENS = {"char-lm"}  # models whose samples are rows of tokens


@dataclass(frozen=True)
class ModelPlan:
    """Builds a module for the samples of a data set; a module as an object keeps its weights."""

    source: ModelSource  # a function receives `input_shape` and `classes` if it has such parameters
    parameters: dict[str, Any]
    input_shape: Shape  # of one sample
    classes: int  # logits for each label
    # samples are int64 tokens (N, T), each with a label; otherwise float32 with one label each
    tokens: bool = False

    @property
    def name(self) -> str:
        if isinstance(self.source, str):
            return self.source
        return getattr(self.source, "__name__", type(self.source).__name__)

    def build(self) -> nn.Module:
        """Build a module from torch's present generator, and check it on two samples."""
        module = (
            copy.deepcopy(self.source)
            if isinstance(self.source, nn.Module)
            else self._call_source(self.source)
        )
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"model {self.name}: it returned {type(module).__name__}, not an nn.Module."
            )
        self._check(module)
        return module

    def _call_source(self, source: str | Callable[..., nn.Module]) -> Any:
        where = f"model {self.name}"
        if not isinstance(source, str):
            if not callable(source):
                raise ConfigError(
                    f"{where}: a model is a name, an nn.Module or a function that returns "
                    f"one, not {type(source).__name__}."
                )
            function: Callable[..., Any] = source
        elif (adapter := model_adapter(source)) is not None:
            function = adapter
        elif ":" in source:
            function = load_reference(source, where)
        elif source in MODELS:
            function = MODELS[source]
        else:
            raise unknown_name("model", source, MODELS)
        offered = {"input_shape": self.input_shape, "classes": self.classes}
        with users_code(f"{where}: cannot be built for {self._samples}"):
            return call_checked(function, where, self.parameters, offered)

    def _check(self, module: nn.Module) -> None:
        """Check two samples' output: (2, classes) or (2, classes, T), as for `cross_entropy`."""
        was_training = module.training
        try:
            with users_code(f"model {self.name}: does not take {self._samples}"), torch.no_grad():
                output = module.eval()(self.example)
        finally:
            module.train(was_training)
        expected = (2, self.classes, *(self.input_shape if self.tokens else ()))
        got = tuple(getattr(output, "shape", ()))
        if got != expected:
            label = "token" if self.tokens else "sample"
            raise ConfigError(
                f"model {self.name}: must return {self.classes} logits per {label}, "
                f"shape {expected} for two samples; got {got}."
            )

    @property
    def _samples(self) -> str:
        return (
            f"{f'tokens from 0 to {self.classes - 1}' if self.tokens else 'samples'} of shape"
            f" {self.input_shape}"
        )

    @property
    def example(self) -> Tensor:
        """Two samples: zeros, or the vocabulary's last token."""
        shape = (2, *self.input_shape)
        return torch.full(shape, self.classes - 1) if self.tokens else torch.zeros(shape)


def listed(name: str) -> ModelPlan:
    """Return a registered model for lists: for ten classes, or a vocabulary of ten tokens."""
    return ModelPlan(
        name, {}, MADE_FOR.get(name, (3, 32, 32)), classes=10, tokens=name in FOR_TOKENS
    )
