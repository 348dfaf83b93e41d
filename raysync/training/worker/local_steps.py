"""Local steps: a worker's optimizer steps between two pushes, and the change they push."""

from __future__ import annotations

from collections import deque
from math import isfinite

import torch
from torch import Tensor

from raysync.config import Local
from raysync.training.data.batch_reader import BatchReader
from raysync.training.formats.state_file import State
from raysync.training.optim.clipping import clipped, norm_of
from raysync.training.optim.flat_optimizer import FlatOptimizer
from raysync.training.optim.lr_schedule import learning_rate
from raysync.training.vectors.parameter_groups import parameter_groups
from raysync.training.worker.gradient import GradientComputation, Launched
from raysync.training.worker.not_finite import first_not_finite


class LocalSteps:
    """The steps of one worker, with its own optimizer; the computation may serve others, too."""

    def __init__(self, computation: GradientComputation, local: Local) -> None:
        self.device_s = 0.0
        self._computation, self._keeps_state = computation, local.keeps_state
        self._update, model = local.update, computation.model
        self._groups = parameter_groups(self._update, model.parameters)
        self._weights_before = torch.empty_like(model.weights)  # (P,)
        # Weights and gradient of a step of a GPU, which goes on with the next one before anybody
        # reads its loss.
        self._kept: tuple[Tensor, Tensor] | None = None
        if computation.device.is_gpu:
            self._kept = torch.empty_like(model.weights), torch.empty_like(model.weights)
        self._optimizer: FlatOptimizer | None = None
        self._saved_state: State | None = None  # a checkpoint's, for the next optimizer

    def compute(
        self,
        reader: BatchReader,
        batch: int,
        steps: int,
        batch_size: int,
        progress: float = 0.0,
        progress_of_step: float = 0.0,
    ) -> float:
        """Step from the computation's weights; leave x_pulled - x_local as the gradient.

        Each step reads the next batch; steps end early at a value that is not finite. A GPU has
        begun another batch by then, of which only what the module keeps remains, such as buffers.
        Returns the mean loss.
        """
        computation, model = self._computation, self._computation.model
        self._weights_before.copy_(model.weights)
        self._prepare_optimizer()
        losses: list[float] = []
        self.device_s, unread = 0.0, deque[Launched]()
        for number in range(batch, batch + steps):
            try:
                unread.append(computation.launch(reader, number, batch_size))
            except Exception:  # perhaps because of the step before, which nobody has read
                losses += [self._settle(step, reader) for step in unread]
                if not unread or computation.not_finite is None:
                    raise
                break
            if len(unread) > (self._kept is not None):
                losses.append(self._settle(unread.popleft(), reader))
                if computation.not_finite is not None:
                    break
            self._keep()
            self._step(progress + (number - batch) * progress_of_step, number)
        else:
            losses += [self._settle(step, reader) for step in unread]
        torch.sub(self._weights_before, model.weights, out=model.gradient)
        loss = sum(losses) / len(losses)
        if computation.not_finite is None and not isfinite(model.gradient.sum().item()):
            last = batch + steps - 1, batch_size
            computation.not_finite = first_not_finite(
                loss, model.gradient, model.weights, model.parameters, reader, last
            )
        return loss

    def _settle(self, step: Launched, reader: BatchReader) -> float:
        """Return a step's loss; if it is not finite, leave the weights that it began with."""
        computation, model = self._computation, self._computation.model
        weights, gradient = self._kept or (model.weights, model.gradient)
        loss = computation.settle(step, reader, weights, gradient)
        self.device_s += computation.device_s
        if computation.not_finite is not None and self._kept is not None:
            model.weights.copy_(weights)
        return loss

    def _keep(self) -> None:
        if self._kept is not None:
            weights, gradient = self._kept
            weights.copy_(self._computation.model.weights)
            gradient.copy_(self._computation.model.gradient)

    def _prepare_optimizer(self) -> None:
        if self._optimizer is not None and self._keeps_state:
            return
        self._optimizer = FlatOptimizer(self._update, self._computation.model.weights, self._groups)
        if self._saved_state is not None and self._keeps_state:
            self._optimizer.restore(self._saved_state["optimizer"])
            self._saved_state = None

    def _step(self, progress: float, number: int) -> None:
        update, gradient = self._update, self._computation.model.gradient
        assert self._optimizer is not None, "a step without an optimizer"
        if update.clip_norm is not None:
            gradient = clipped(gradient, update.clip_norm, norm_of(gradient), out=gradient)
        # The worker's steps are as many as its batches, also where its state starts anew.
        lr = learning_rate(update, progress, number)
        momentum = update.momentum if update.momentum else None
        self._optimizer.step(gradient, lr, update.weight_decay, momentum)
        self._computation.read_weights([])  # copies the first device's weights to the others

    @property
    def weights(self) -> Tensor:
        """The weights after the steps, (P,), valid until the computation reads others."""
        return self._computation.model.weights

    def state(self) -> State:
        """Return the state of later steps; its tensors are valid until the next one."""
        if not self._keeps_state:
            return {}
        if self._optimizer is None:
            return self._saved_state or {}
        return {"optimizer": self._optimizer.state()}

    def load_state(self, state: State) -> None:
        self._optimizer, self._saved_state = None, state or None
