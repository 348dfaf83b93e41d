"""Models of a user, and what the tests here look at."""

import os
from dataclasses import dataclass, field
from typing import ClassVar

import psutil
from torch import nn

from raysync.core.decisions import Apply, Drop, Release, SetTimer
from raysync.core.paradigm import Paradigm

TINY = {
    "name": "test",
    "model": "mlp",
    "data": {"name": "digits", "train_samples": 320, "test_samples": 50},
    "batch_size": 8,
    "workload": {"samples": 480},
    "workers": [{"name": "w", "count": 3}],
    "evaluation": {"marks": 4},
}
UNEQUAL = [{"name": "fast", "count": 2, "step_s": 0.01}, {"name": "slow", "step_s": 0.03}]


@dataclass
class Ticking(Paradigm):
    """Everything that the four paradigms do not use: a timer, a drop, releases without a pull,
    other batch sizes.
    """

    name: ClassVar[str] = "ticking"
    period_s: float = 0.03
    ticks: int = field(default=0, init=False)
    waiting: bool = field(default=False, init=False)

    def on_push(self, roster, push):
        if self.waiting:
            return []
        self.waiting = True
        return [SetTimer("tick", roster.now + self.period_s)]

    def on_leave(self, roster, worker):
        return []

    def on_timer(self, roster, key):
        self.waiting = False
        self.ticks += 1
        first, *rest = roster.buffered
        used = (
            [Apply(tuple(rest)), Drop(first, why="the first of several")]
            if rest
            else [Apply((first,))]
        )
        return [
            *used,
            *(Release(worker, pull=self.ticks % 2 == 0, batch_size=4) for worker in roster.held),
        ]

    def explain(self, roster, worker):
        return "waits for the tick"


@dataclass
class Eager(Paradigm):
    """Releases before it applies, and breaks after a while if it is told to."""

    name: ClassVar[str] = "eager"
    breaks_after: int = 10**9

    def on_push(self, roster, push):
        if roster.received > self.breaks_after:
            raise ZeroDivisionError("a bug in my paradigm")
        return [Release(push[0]), Apply((push,))]

    def on_leave(self, roster, worker):
        return []

    def explain(self, roster, worker):
        return ""


class Raising(nn.Module):
    """Breaks when it is trained on anything but zeros."""

    def __init__(self, classes):
        super().__init__()
        self.linear = nn.Linear(64, classes)

    def forward(self, x):
        if self.training and x.any():
            raise ValueError("my layer does not like this batch")
        return self.linear(x.flatten(1))


def raising(classes):
    return Raising(classes)


def line(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


def pid_of(ray, actor):
    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


def rss_mib(pid):
    return psutil.Process(pid).memory_info().rss / 2**20


class BreaksAtAGradient(nn.Linear):
    """Breaks at its first gradient."""

    def forward(self, x):
        if self.training and x.requires_grad:
            raise ValueError("this layer breaks")
        return super().forward(x)


def breaks_at_a_gradient():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), BreaksAtAGradient(8, 10))
