"""The iterations of one worker, and what it keeps from one to the next."""

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

    The computation may serve several workers in turn; the state of local steps and what the codec
    of pushes has lost are this worker's alone.
    """

    def __init__(self, gradient: GradientComputation, experiment: Experiment) -> None:
        """
        Args:
            gradient: computes gradients at the weights that it has.
            experiment: says what an iteration is, and how pushes travel.
        """
        local = experiment.local
        self.gradient = gradient
        self.local = None if local is None else LocalSteps(gradient, local)
        feeds_back = experiment.cluster.wire.feeds_back
        self._residual = torch.zeros_like(gradient.model.weights) if feeds_back else None
        self._is_checkpointed = experiment.checkpoint is not None
        self._before: tuple[int, State] = (-1, {})
        """The first batch of the latest iteration, and the state before it."""

    def compute(
        self, reader: BatchReader, batch: int, steps: int, batch_size: int, progress: float
    ) -> float:
        """Compute an iteration from the weights that the computation has; it leaves what is pushed.

        Args:
            reader: has the batches of the slot.
            batch: the number of the first one.
            steps: of local steps, on a batch each.
            batch_size: in samples.
            progress: of the run, for the schedule of local steps.

        Returns:
            The mean loss of the batches.
        """
        if self._is_checkpointed:
            self._before = batch, deepcopy(self.state())
        self.gradient.residual = self._residual
        if self.local is None:
            return self.gradient.compute(reader, batch, batch_size)
        return self.local.compute(reader, batch, steps, batch_size, progress)

    @property
    def device_s(self) -> float:
        """The seconds in which a GPU computed the latest iteration; 0 on CPUs."""
        return self.gradient.device_s if self.local is None else self.local.device_s

    def state(self) -> State:
        """Return what later iterations depend on; its tensors are valid until the next one."""
        local = {} if self.local is None else self.local.state()
        return {"local": local, "residual": self._residual}

    def state_before(self, batch: int) -> State:
        """Return the state before the iteration that begins with that batch: the latest one, or
        the one after it. Only for runs that take checkpoints.
        """
        begun, state = self._before
        return state if begun == batch else self.state()

    def load_state(self, state: State) -> None:
        """Take what `state` returned, in place of what later iterations would depend on."""
        if self.local is not None:
            self.local.load_state(state["local"])
        if self._residual is not None:
            self._residual.copy_(state["residual"])
