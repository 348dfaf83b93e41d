"""The program of one stage of a network, in one group of workers.

Shapes: P trainable parameters of the stage, Q floats of its buffers, N samples of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor

from raysync.decoupled.stage_computation import StageComputation
from raysync.engine.messages import BackwardCall, ForwardCall, Message, StepReport
from raysync.programs.program import Handled, check_size, not_mine
from raysync.training.data.batch_reader import BatchReader
from raysync.training.data.batch_structure import batch_to
from raysync.training.formats.state_file import State
from raysync.training.task import Task
from raysync.training.worker.device import Device, seconds_between
from raysync.training.worker.not_finite import first_not_finite


class StageProgram:
    """Runs batches forward and backward, in the order of the schedule."""

    def __init__(
        self,
        computation: StageComputation,
        stage: int,  # from 1
        stages: int,
        task: Task,
        reader: BatchReader,
        batch_size: int,
        device: str = "cpu",
        # entered during a pass, for who measures that
        computing: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._computation, self._task = computation, task
        self._size = len(computation.initial())
        self._reader, self._batch_size = reader, batch_size
        self._is_first, self._is_last = stage == 1, stage == stages
        self._device, self._computing = Device(device), computing
        self._span: tuple[Any, Any] = (None, None)  # marks before and after the last pass
        self._needs_buffers = True  # the stage reads the run's buffers with its first weights

    def handle(
        self, message: Message, inputs: Sequence[Tensor], into: Tensor | None = None
    ) -> Handled:
        with self._computing():
            match message:
                case ForwardCall(batch=batch):
                    return Handled((self._forward(batch, inputs),))
                case BackwardCall(batch=batch):
                    return self._backward(batch, inputs)
        raise not_mine("stage", message)

    @property
    def device_s(self) -> float:
        """A GPU's seconds for the last pass, once its results are copied; 0 on a CPU."""
        return seconds_between(*self._span)

    def _forward(self, batch: int, inputs: Sequence[Tensor]) -> Tensor:
        """Run a batch forward; return the activation for the next stage, (N, ...)."""
        x = self._read(inputs, expects_one=not self._is_first)
        if x is None:
            x = self._task.inputs(self._samples(batch))
        with self._timed():
            y = self._computation.forward(batch, x, self._reader.seed(batch - 1))
        return self._device.download(y)

    def _backward(self, batch: int, inputs: Sequence[Tensor]) -> Handled:
        """Run a batch backward; the last stage, which alone has the loss, runs it forward first."""
        arrived = self._read(inputs, expects_one=not (self._is_first and self._is_last))
        loss: float | None = None
        if self._is_last:
            loss, vector, dx = self._learn(batch, arrived)
        else:
            assert arrived is not None, "a backward pass without a gradient"
            with self._timed():
                vector, dx = self._computation.backward(batch, arrived)
        not_finite = first_not_finite(
            loss,
            vector[: self._computation.size],
            self._computation.weights,
            self._computation.parameters,
            self._reader,
            (batch - 1, self._batch_size),
            arrived,
        )
        back = None if dx is None or self._is_first else self._device.download(dx)
        report = StepReport(loss, 0.0, not_finite)
        return Handled((self._device.download(vector), back), report, is_borrowed=True)

    def _read(self, inputs: Sequence[Tensor], *, expects_one: bool) -> Tensor | None:
        """Read new weights, if any; return the neighbour's tensor, if one is expected."""
        assert 0 <= len(inputs) - expects_one <= 1, f"{len(inputs)} inputs of a pass"
        if len(inputs) > expects_one:
            vector = self._device.upload(inputs[0])
            check_size([vector], self._size)
            self._computation.read_weights(vector)
            if self._needs_buffers:
                self._computation.read_buffers(vector)
                self._needs_buffers = False
        if not expects_one:
            return None
        arrived: Tensor = self._device.upload(inputs[-1])
        assert len(arrived) == self._batch_size, f"{len(arrived)} samples of a batch"
        return arrived

    def _samples(self, batch: int) -> Any:
        # all stages of a group read the same batch
        read = self._reader.read(batch - 1, [self._batch_size])[0]
        return batch_to(read, self._device.upload) if self._device.is_gpu else read

    def _learn(self, batch: int, arrived: Tensor | None) -> tuple[float, Tensor, Tensor | None]:
        samples = self._samples(batch)
        x = self._task.inputs(samples) if arrived is None else arrived
        with self._timed():
            return self._computation.learn(
                batch,
                x,
                lambda output: self._task.criterion(output, samples),
                self._reader.seed(batch - 1),
            )

    @contextmanager
    def _timed(self) -> Iterator[None]:
        begin = self._device.mark()
        yield
        self._span = begin, self._device.mark()

    def state(self) -> State:
        return self._computation.state() | {"takes_buffers": self._needs_buffers}

    def load_state(self, state: State) -> None:
        self._computation.load_state(state)
        self._needs_buffers = state["takes_buffers"]
