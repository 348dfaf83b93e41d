"""The model of a task with its initial weights, as every actor of a run builds it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from raysync.errors import ConfigError
from raysync.randomness import hashed_seed
from raysync.training.task import Task


@dataclass(frozen=True, eq=False)
class InitialModel:
    """What the actors of a run share: the task, and how its model begins. A node has one copy of
    its arrays.
    """

    task: Task

    @property
    def name(self) -> str:
        """The name of the model in records."""
        return self.task.model_name

    def build(self, seed: int) -> nn.Module:
        """Build the module with the initial weights of a run with that seed, on the CPU.

        Raises:
            ConfigError: the task does not return a module, or refuses its settings.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hashed_seed(seed, "init") >> 1)
            module = self.task.build_model()
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"task {self.task.name}: build_model returned {type(module).__name__}, not an"
                " nn.Module."
            )
        return module
