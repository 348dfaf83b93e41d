"""The model of a task with its initial weights, as every actor of a run builds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from raysync.errors import ConfigError
from raysync.randomness import hashed_seed
from raysync.training.state_dict import StateDict, fill
from raysync.training.task import Task
from raysync.training.torchvision_import import OperatorsDeclared


@dataclass(frozen=True, eq=False)
class InitialModel:
    """What the actors of a run share: the task, and how its model begins. A node has one copy of
    its arrays.

    The task's data sets are made once in each process, when they are needed: making one may read
    the names of all files in a folder.
    """

    task: Task
    state: StateDict | None = None
    """The tensors to begin with; None: those that the task builds."""
    operators: OperatorsDeclared = field(default_factory=OperatorsDeclared)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what makes the task's module importable before the task."""
        return _unpickled, (self.operators, self.task, self.state)

    @cached_property
    def train_set(self) -> Dataset[Any]:
        """The samples to train on."""
        return self.task.train_set()

    @cached_property
    def test_set(self) -> Dataset[Any]:
        """The samples to evaluate on."""
        return self.task.test_set()

    @cached_property
    def validation_set(self) -> Dataset[Any] | None:
        """The samples to evaluate on while the model is trained; None: those of the test set."""
        return self.task.validation_set()

    @property
    def name(self) -> str:
        """The name of the model in records."""
        return self.task.model_name

    def build(self, seed: int) -> nn.Module:
        """Build the module with the initial weights of a run with that seed, on the CPU.

        Raises:
            ConfigError: the task does not return a module, or refuses its settings; or the tensors
                to begin with do not fit.
        """
        with seeded(seed):
            module = self.task.build_model()
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"task {self.task.name}: build_model returned {type(module).__name__}, not an"
                " nn.Module."
            )
        return module if self.state is None else fill(module, self.state, "init_from")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw the initial weights of a run with that seed within the block."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(hashed_seed(seed, "init") >> 1)
        yield


def _unpickled(operators: OperatorsDeclared, task: Task, state: StateDict | None) -> InitialModel:
    return InitialModel(task, state, operators)
