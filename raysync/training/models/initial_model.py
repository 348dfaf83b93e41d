"""The model of a task with its initial weights, as every actor of a run builds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import Dataset

from raysync.errors import ConfigError
from raysync.randomness import hashed_seed
from raysync.training.data.batch_reader import BatchReader
from raysync.training.data.batches import Array, Batches
from raysync.training.data.samplers import read_selection
from raysync.training.data.selected_samples import SelectedSamples, Selection
from raysync.training.formats.state_dict import StateDict, fill
from raysync.training.task import Task
from raysync.training.vectors.module_state import ModuleState
from raysync.users_code import users_code


@dataclass(frozen=True, eq=False)
class InitialModel:
    """The task and its model's start; the actors of a node share one copy of its arrays."""

    task: Task
    state: StateDict | None = None  # the initial weights; None: as the task builds them
    selection: Selection | None = None  # of training samples; None: as the task's sampler says
    found: ModuleState = ModuleState()  # noqa: RUF009 - it is frozen

    def __reduce__(self) -> tuple[Any, ...]:
        # without the cached data sets, but with what a sampler chose once, for all processes
        read = vars(self).get("train_set")
        selection = read.selection if isinstance(read, SelectedSamples) else self.selection
        return InitialModel, (self.task, self.state, selection, self.found)

    def with_found(self, found: ModuleState) -> InitialModel:
        """Return the same model and data sets, with what a trial has found."""
        model = InitialModel(self.task, self.state, self.selection, found)
        sets = ("train_set", "test_set", "validation_set")
        vars(model).update({name: vars(self)[name] for name in sets if name in vars(self)})
        return model

    # each process makes the sets when needed: this may read the names of all files in a folder
    @cached_property
    def train_set(self) -> Dataset[Any]:
        task = self.task
        with users_code(f"task {task.name}: train_set"):
            samples = task.train_set()
        selection = self.selection
        if selection is None:
            where = f"task {task.name}: sampler"
            selection = read_selection(lambda: task.sampler(samples), samples, where)
        return samples if selection is None else SelectedSamples(samples, selection)

    @property
    def sample_weights(self) -> Array | None:
        """The weights of the training samples, if a sampler draws them by weights."""
        samples = self.train_set
        return samples.selection.weights if isinstance(samples, SelectedSamples) else None

    @cached_property
    def test_set(self) -> Dataset[Any]:
        with users_code(f"task {self.task.name}: test_set"):
            return self.task.test_set()

    @cached_property
    def validation_set(self) -> Dataset[Any] | None:
        """The samples of evaluations during training; None: the test set."""
        with users_code(f"task {self.task.name}: validation_set"):
            return self.task.validation_set()

    @property
    def name(self) -> str:
        return self.task.model_name

    def build(self, seed: int) -> nn.Module:
        """Build the module with the initial weights of a run, on the CPU, in training mode."""
        with seeded(seed):
            module = self._build_module()
        if self.state is not None:
            fill(module, self.state, "init_from")
        # a module may freeze parts of itself in `train`: only then is it decided what is trained
        return module.train()

    def _build_module(self) -> nn.Module:
        where = f"task {self.task.name}: build_model"
        with users_code(where):
            module = self.task.build_model()
        if not isinstance(module, nn.Module):
            raise ConfigError(f"{where} returned {type(module).__name__}, not an nn.Module.")
        if lazy := _lazy_parts(module):
            with users_code(f"{where}: lazy parts ({', '.join(lazy)})"), torch.no_grad():
                self._materialise(module)
            if lazy := _lazy_parts(module):
                raise ConfigError(
                    f"{where}: the loss does not use {', '.join(lazy)}, which is lazy: its shape"
                    " stays unknown. Give its sizes, or leave it out."
                )
        return module

    def _materialise(self, module: nn.Module) -> None:
        """Give lazy parts their shapes from two samples, the same in each process."""
        samples, was_training = self.train_set, module.training
        size = min(2, len(samples))  # type: ignore[arg-type]
        first = Batches(np.arange(size), 0, "lazy")
        [batch] = BatchReader(samples, self.task.collate, first).read(0, [size])
        self.task.loss(module.eval(), batch)  # eval: statistics stay as they are
        module.train(was_training)


def _lazy_parts(module: nn.Module) -> list[str]:
    return [
        name or type(part).__name__
        for name, part in module.named_modules()
        if any(map(is_lazy, (*part.parameters(recurse=False), *part.buffers(recurse=False))))
    ]


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw the initial weights of a run with that seed within the block."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(hashed_seed(seed, "init") >> 1)
        yield
