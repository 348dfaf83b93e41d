"""The iterations of one worker, and its state between them."""

from __future__ import annotations

from copy import deepcopy

import torch

from raysync.config import Experiment
from raysync.training.data.batch_reader import BatchReader
from raysync.training.files.state_file import State
from raysync.training.worker.gradient import GradientComputation
from raysync.training.worker.local_steps import LocalSteps


class WorkerComputation:
    """A worker's gradients, or its local steps.

    The computation may serve several workers in turn; local steps and codec residual are this
    worker's alone.
    """

    def __init__(self, gradient: GradientComputation, experiment: Experiment) -> None:
        local = experiment.local
        self.gradient = gradient
        self.local = None if local is None else LocalSteps(gradient, local)
        feeds_back = experiment.cluster.wire.feeds_back
        self._residual = torch.zeros_like(gradient.model.weights) if feeds_back else None
        self._is_checkpointed = experiment.checkpoint is not None
        # first batch of the latest iteration, and the state before it
        self._before: tuple[int, State] = (-1, {})

    def compute(
        self,
        reader: BatchReader,
        batch: int,
        steps: int,
        batch_size: int,
        progress: float = 0.0,
        progress_of_step: float = 0.0,
    ) -> float:
        """Run an iteration from batch number `batch` on; return the mean loss."""
        if self._is_checkpointed:
            self._before = batch, deepcopy(self.state())
        self.gradient.residual = self._residual
        if self.local is None:
            return self.gradient.compute(reader, batch, batch_size)
        return self.local.compute(reader, batch, steps, batch_size, progress, progress_of_step)

    @property
    def device_s(self) -> float:
        return self.gradient.device_s if self.local is None else self.local.device_s

    def state(self) -> State:
        """Return the state of later iterations; its tensors are valid until the next one."""
        local = {} if self.local is None else self.local.state()
        return {"local": local, "residual": self._residual}

    def state_before(self, batch: int) -> State:
        """Return the state before the latest or next iteration, for checkpoints."""
        begun, state = self._before
        return state if begun == batch else self.state()

    def load_state(self, state: State) -> None:
        if self.local is not None:
            self.local.load_state(state["local"])
        if self._residual is not None:
            self._residual.copy_(state["residual"])
