"""Code of a user that raises an error, each in one place."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.utils.data import Dataset

import raysync
from tests.builders.tasks import Pairs, Sums


def broken(*_, **__):
    raise KeyError("mended nowhere")


class Init(Sums):
    __init__ = broken


class BuildModel(Sums):
    build_model = broken


class TrainSet(Sums):
    train_set = broken


class TestSet(Sums):
    __test__ = False
    test_set = broken


class ValidationSet(Sums):
    validation_set = broken


class Collate(Sums):
    collate = broken


class Loss(Sums):
    loss = broken


class Metrics(Sums):
    metrics = broken


class Update(Sums):
    update = broken


class Remarks(Sums):
    remarks = broken


class Name(Sums):
    name = property(broken)


class LengthOfSamples(Dataset):
    __len__ = __getitem__ = broken


class Length(Sums):
    def train_set(self):
        return LengthOfSamples()


class NoSample(Pairs):
    __getitem__ = broken


class Sample(Sums):
    def train_set(self):
        return NoSample(24)


def model(**_):
    broken()


class Forward(nn.Linear):
    forward = broken


def data():
    broken()


def lazy_data():
    return raysync.data_set("lazy", NoSample(9), NoSample(9), 2)


class Frozen(nn.LazyLinear):
    """Its parameters get no shape, since nothing calls it."""


class Unused(Sums):
    def build_model(self):
        module = super().build_model()
        module.unused = Frozen(3)
        return module


@dataclass
class BrokenParadigm(raysync.Paradigm):
    name: ClassVar[str] = "broken"
    __post_init__ = on_push = on_leave = explain = broken


@dataclass
class BrokenPhases(raysync.Paradigm):
    name: ClassVar[str] = "broken"
    phases = on_push = on_leave = explain = broken


class BrokenCallback(raysync.Callback):
    __init__ = broken
