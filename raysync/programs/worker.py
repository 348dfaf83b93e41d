"""The program of a worker with the whole model: weights in, gradient out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from raysync.engine.messages import (
    LoadWorkerStateCall,
    Message,
    RestoreCall,
    StepCall,
    StepReport,
    WorkerStateCall,
)
from raysync.programs.program import Handled, check_size, not_mine
from raysync.training.data.batch_reader import BatchReader
from raysync.training.formats.state_file import State, decode, encode
from raysync.training.worker.computation import WorkerComputation
from raysync.training.worker.device import try_kernels


class WorkerProgram:
    """Computes gradients, or the changes by local steps, on its device, or on several.

    It knows no paradigm and no other worker. A gradient has the buffers behind it, and is in the
    format in which it travels: see `training.vectors.wire`.
    """

    def __init__(
        self,
        computation: WorkerComputation,
        reader: BatchReader,
        # the permanent one, for which cuDNN is to try its kernels; None: that is not its business
        batch_size: int | None = None,
        # entered while it computes, without copies of vectors, for who measures that
        computing: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.computation, self._reader, self._computing = computation, reader, computing
        self._gradient, self._batch_size = computation.gradient, batch_size
        model = self._gradient.model
        self._size = model.size + model.buffer_size

    def handle(
        self, message: Message, inputs: Sequence[Any], into: Tensor | None = None
    ) -> Handled:
        takes_vectors = isinstance(message, StepCall | RestoreCall)
        assert takes_vectors or not inputs, f"inputs of {message}"
        match message:
            case StepCall():
                return self._step(message, inputs, into)
            case RestoreCall():
                check_size(inputs, self._size)
                self._gradient.read_buffers(torch.cat(list(inputs)))
            case WorkerStateCall(batch=batch):
                return Handled((encode(self.computation.state_before(batch)),))
            case LoadWorkerStateCall(data=data):
                self.computation.load_state(decode(data))
            case _:
                raise not_mine("worker", message)
        return Handled()

    def _step(self, message: StepCall, weights: Sequence[Tensor], into: Tensor | None) -> Handled:
        gradient = self._gradient
        if weights:
            check_size(weights, self._size)
            gradient.read_weights(weights)
        if into is not None:
            gradient.write_into(into)
        if self._batch_size is not None:
            try_kernels(message.samples == self._batch_size)
        with self._computing():
            loss = self.computation.compute(
                self._reader,
                message.batch,
                message.steps,
                message.samples,
                message.progress,
                message.progress_of_step,
            )
            vector = gradient.outgoing()
        report = StepReport(loss, 0.0, gradient.not_finite)
        return Handled((vector,), report, is_borrowed=into is None)

    @property
    def device_s(self) -> float:
        """A GPU's seconds for the last step without copies; 0 on CPUs."""
        return self.computation.device_s

    def initial(self) -> Tensor:
        """Return the weights and buffers that the model was built with, (P + Q,)."""
        return self._gradient.model.initial()

    @property
    def part_sizes(self) -> Sequence[int]:
        """The numbers of a gradient that each shard of the server gets."""
        return self._gradient.wire.sizes

    def move_weights(self, vector: Tensor) -> None:
        """Move the weights into the front of a vector (P + Q,), before the first step."""
        self._gradient.move_weights(vector)

    def draw_ahead(self) -> None:
        """Draw the next batch, while the server updates."""
        # Other samples are left to loader processes: reading takes long, and must show in a step.
        if self._reader.is_in_memory:
            self._gradient.draw_ahead(self._reader)

    def state(self) -> State:
        return self.computation.state()

    def load_state(self, state: State) -> None:
        self.computation.load_state(state)
