"""The iterations of one worker, and its state between them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor

from raysync.config import Experiment
from raysync.training.data.batch_reader import BatchReader
from raysync.training.formats.state_file import State
from raysync.training.worker.gradient import GradientComputation
from raysync.training.worker.local_steps import LocalSteps
from raysync.training.worker.own_state import Values, copied


class Before(NamedTuple):
    """What there was before the latest iteration."""

    batch: int = -1  # its first
    state: State = {}  # noqa: RUF012 - of none
    buffers: Sequence[Tensor] = ()  # (Q,) of each replica
    own: Values | None = None


class WorkerComputation:
    """A worker's gradients, or its local steps.

    The computation may serve several workers in turn; local steps and codec residual are this
    worker's alone.
    """

    def __init__(
        self,
        gradient: GradientComputation,
        experiment: Experiment,
        may_repeat: bool = False,  # the driver may ask for the latest iteration again
    ) -> None:
        local = experiment.local
        self.gradient = gradient
        self.local = None if local is None else LocalSteps(gradient, local)
        feeds_back = experiment.cluster.wire.feeds_back
        self._residual = torch.zeros_like(gradient.model.weights) if feeds_back else None
        self._keeps_before = experiment.checkpoint is not None or may_repeat
        self._before = Before()
        self._own: Values | None = None  # None: as the model was built

    def compute(
        self,
        reader: BatchReader,
        batch: int,
        steps: int,
        batch_size: int,
        progress: float = 0.0,
        progress_of_step: float = 0.0,
    ) -> float:
        """Run an iteration from batch number `batch` on; return the mean loss.

        It may be asked for again: a server that is lost may have delivered its weights, although
        nobody knows. Then what the first run has left does not count.
        """
        before, gradient = self._before, self.gradient
        if before.batch == batch:
            self.load_state(deepcopy(before.state))
            gradient.restore_buffers(before.buffers)
            self._own = None if before.own is None else copied(before.own)
        elif self._keeps_before:
            own = None if self._own is None else copied(self._own)
            self._before = Before(batch, deepcopy(self.state()), gradient.buffers(), own)
        gradient.residual = self._residual
        with gradient.own_state.of(self._own) as self._own:
            if self.local is None:
                return gradient.compute(reader, batch, batch_size)
            return self.local.compute(reader, batch, steps, batch_size, progress, progress_of_step)

    @property
    def device_s(self) -> float:
        return self.gradient.device_s if self.local is None else self.local.device_s

    def state(self) -> State:
        """Return the state of later iterations; its tensors are valid until the next one."""
        local = {} if self.local is None else self.local.state()
        own = self.gradient.own_state.plain(self._own)
        return {"local": local, "residual": self._residual} | ({"own": own} if own else {})

    def state_before(self, batch: int) -> State:
        """Return the state before the latest or next iteration, for checkpoints."""
        before = self._before
        return before.state if before.batch == batch else self.state()

    def load_state(self, state: State) -> None:
        if self.local is not None:
            self.local.load_state(state["local"])
        if self._residual is not None:
            self._residual.copy_(state["residual"])
        own = state.get("own")
        self._own = None if own is None else self.gradient.own_state.from_plain(own)
