"""The arithmetic of one worker: weights in, gradient out.

Shapes: P trainable parameters, Q float32 numbers of all buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from itertools import islice
from math import isfinite
from typing import Any, NamedTuple

from torch import Tensor, nn

from raysync.config import WorkerGroup
from raysync.core.finding import Finding
from raysync.training.data.batch_reader import BatchReader, even_sizes
from raysync.training.data.batch_structure import batch_to
from raysync.training.task import Task
from raysync.training.vectors.flat import FlatModel
from raysync.training.vectors.module_state import ModuleState
from raysync.training.vectors.wire import FRACTION, Wire
from raysync.training.worker.compiling import Loss, compiled
from raysync.training.worker.device import Device, seconds_between
from raysync.training.worker.module_watch import ModuleWatch
from raysync.training.worker.not_finite import first_not_finite, with_sum
from raysync.training.worker.own_state import OwnState
from raysync.training.worker.precision import computing_in

PLAIN = WorkerGroup()
BatchPart = tuple[Any, float]  # part of a batch, and its share of the batch's samples


class Launched(NamedTuple):
    """A step that a GPU may still compute."""

    batch: tuple[int, int]  # its clock and size
    read: Callable[[], list[float]]  # waits for it; returns its losses, and its gradient's sum
    # of each replica, the device's marks before and after each part of its batch
    spans: Sequence[Sequence[tuple[Any, Any]]]


class _Replica:
    """The model on one device."""

    def __init__(
        self, loss: Loss, module: nn.Module, device: str, group: WorkerGroup, found: ModuleState
    ) -> None:
        self.device = Device(device)
        self.model = FlatModel(module.to(device).train(), found=found)
        self._watch = ModuleWatch(module, found.moved)
        self._loss = loss
        self._precision = group.precision
        self.spans: list[tuple[Any, Any]] = []  # of the last batch: see `Launched`

    def compute(self, parts: Sequence[BatchPart]) -> list[Tensor]:
        """Leave the weighted gradient of parts in `model.outgoing`; return their losses at once."""
        self.spans = []
        self.model.begin_gradient()
        losses = [self._add(batch, share) for batch, share in parts]
        self._watch.check()
        self.model.write_gradient()
        return losses

    def _add(self, batch: Any, share: float) -> Tensor:
        if self.device.is_gpu:
            batch = batch_to(batch, self.device.upload)
        begin = self.device.mark()
        with computing_in(self._precision, self.model.weights.device):
            loss = self._loss(self.model.module, batch)
            if share < 1:
                loss = loss * share
        loss.backward()  # type: ignore[no-untyped-call]
        self.spans.append((begin, self.device.mark()))
        return loss.detach()


class GradientComputation:
    """Computes gradients on one or several devices.

    Each device has a replica and an equal part of the batch, or smaller pieces of it with
    `micro_batch`; the gradients, weighted by samples, are added before the push (LagTuner, section
    5.1). This is the gradient of the whole batch, but batch-norm normalises each part by itself,
    like torch's DataParallel. The push has the mean of the replicas' running statistics (the
    first's for types without a mean); each replica continues with its own.
    """

    def __init__(
        self,
        module: nn.Module,
        task: Task,
        devices: Sequence[str] = ("cpu",),
        group: WorkerGroup = PLAIN,
        micro_batch: int | None = None,
        *,
        wire: str = "float32",
        shards: int = 1,
        fraction: float = FRACTION,
        draws_ahead: bool = False,
        found: ModuleState = ModuleState(),  # noqa: B008 - it is frozen
    ) -> None:
        """
        Args:
            module: fresh; it is moved to the first device, and copied to the others.
            devices: in torch's names; `cpu` may occur several times.
            group: its precision, and whether torch compiles the loss (on one device only).
            draws_ahead: draw the next batch while a GPU computes; only for a computation of one
                worker.
            found: the state beside parameters and buffers.
        """
        modules = [module, *(copy.deepcopy(module) for _ in devices[1:])]
        loss = compiled(task.loss) if group.compile else task.loss
        self._replicas = [
            _Replica(loss, copied, device, group, found=found)
            for copied, device in zip(modules, devices, strict=True)
        ]
        self.device = self._replicas[0].device  # of `model`
        self._devices = list(
            {replica.device.name: replica.device for replica in self._replicas}.values()
        )
        self.model = self._replicas[0].model
        self.own_state = OwnState([replica.model.module for replica in self._replicas], task, found)
        # the format of `outgoing`
        self.wire = Wire(
            name=wire,
            parameters=self.model.size,
            buffers=self.model.buffer_size,
            shards=shards,
            fraction=fraction,
        )
        self.residual: Tensor | None = None  # (P,), for the error feedback of `Wire.encode`
        self._seed = 0  # the seed of the latest batch
        self._micro_batch = micro_batch
        self._draws_ahead = draws_ahead and any(device.is_gpu for device in self._devices)
        self._next_batch: tuple[int, list[int]] | None = None  # clock and sizes of the next batch
        # clock and sizes of a batch drawn ahead, and its parts, or the error of reading it
        self._batch_ahead: tuple[tuple[int, list[int]], Future[list[Any]]] | None = None
        self.not_finite: Finding | None = None  # in the last batch that was settled
        # a GPU's seconds for it without copies, of several GPUs the longest; 0 on CPUs
        self.device_s = 0.0
        self._into: Tensor | None = None  # the vector of `write_into`
        # replicas on one device draw from one generator, so they run in turn
        is_parallel = len(devices) > 1 and len(self._devices) == len(devices)
        self._threads = ThreadPoolExecutor(len(devices)) if is_parallel else None

    def compute(self, reader: BatchReader, clock: int, batch_size: int) -> float:
        """Run batch number `clock` forward and backward; return its mean loss.

        Then `outgoing` gives the gradient. The model's draws (dropout) are a function of (seed,
        slot, clock).
        """
        launched, model = self.launch(reader, clock, batch_size), self.model
        return self.settle(launched, reader, model.weights, model.gradient)

    def launch(self, reader: BatchReader, clock: int, batch_size: int) -> Launched:
        """Begin what `compute` does; a GPU goes on with it meanwhile."""
        assert batch_size >= len(self._replicas), (
            "a device without a sample would make the loss NaN, which reads as diverged"
        )
        sizes = cut_batch(batch_size, len(self._replicas), self._micro_batch)
        pieces = [size for part in sizes for size in part]
        batches = self._read_batch(reader, clock, pieces)
        parts = zip(batches, reader.shares(batches, pieces), strict=True)
        work = [[part for part in islice(parts, len(each)) if part[1]] for each in sizes]
        self._seed = reader.seed(clock)
        losses = self._run_replicas(self._seed, work)
        self._next_batch = clock + 1, pieces
        if len(self._replicas) > 1:
            self._join_replicas()
        read = self.device.read_later(with_sum(losses, self.model.gradient))
        if self._draws_ahead:
            self.draw_ahead(reader)
        return Launched((clock, batch_size), read, [replica.spans for replica in self._replicas])

    def settle(
        self, launched: Launched, reader: BatchReader, weights: Tensor, gradient: Tensor
    ) -> float:
        """Wait for a step, and return its mean loss.

        Args:
            weights, gradient: the step's own, (P,).
        """
        *losses, total = launched.read()
        loss = sum(losses)
        self.device_s = max(
            sum(seconds_between(*span) for span in spans) for spans in launched.spans
        )
        self.not_finite = None
        if not (isfinite(loss) and isfinite(total)):
            self.not_finite = first_not_finite(
                loss, gradient, weights, self.model.parameters, reader, launched.batch
            )
        return loss

    def _read_batch(self, reader: BatchReader, clock: int, pieces: list[int]) -> list[Any]:
        ahead, self._batch_ahead = self._batch_ahead, None
        if ahead is not None and ahead[0] == (clock, pieces):
            return ahead[1].result()
        return reader.read(clock, pieces)

    def draw_ahead(self, reader: BatchReader) -> None:
        """Draw the expected next batch; an error is raised when that batch is used."""
        if self._batch_ahead is None and self._next_batch is not None:
            parts: Future[list[Any]] = Future()
            try:
                batches, device = reader.read(*self._next_batch), self._devices[0]
                # Micro-batches are uploaded one by one: together they may be too large.
                if device.is_gpu and len(batches) == 1:
                    batches = batch_to(batches, device.upload)
                parts.set_result(batches)
            except Exception as error:
                parts.set_exception(error)
            self._batch_ahead = self._next_batch, parts

    def _run_replicas(self, seed: int, work: Sequence[Sequence[BatchPart]]) -> list[Tensor]:
        for index, device in enumerate(self._devices):
            # with equal seeds sample i of every part would have the same mask
            device.seed(seed + index)
        run_all = map if self._threads is None else self._threads.map
        computed = run_all(_Replica.compute, self._replicas, work)
        return [loss for losses in computed for loss in losses]

    def _join_replicas(self) -> None:
        """Add the replicas' gradients, and average their buffers, in the first one's `outgoing`."""
        whole, size = self.model.outgoing, self.model.size
        rows = [whole[size:]]
        for replica in self._replicas[1:]:
            other = replica.model.outgoing.to(whole.device)
            whole[:size].add_(other[:size])
            rows.append(other[size:].clone())
        whole[size:].copy_(self.model.layout.slots.mean(rows))

    # ---- vectors from and to the server ----

    def read_weights(self, parts: Sequence[Tensor]) -> None:
        """Copy the server's parameters (P + Q,), if any, to the first device, then the others."""
        first, *others = self._replicas
        first.model.read_weights(*(first.device.upload(part) for part in parts))
        for replica in others:
            replica.model.copy_weights(first.model)

    def move_weights(self, vector: Tensor) -> None:
        """Move the CPU's weights into the front of a vector (P + Q,)."""
        # only before any computation: a model may keep views of its parameters
        self.model.move_weights(vector)

    def read_buffers(self, vector: Tensor) -> None:
        """Give all replicas the buffers of a vector (P + Q,), when the worker changes."""
        for replica in self._replicas:
            replica.model.read_buffers(vector)

    def buffers(self) -> list[Tensor]:
        """Return a copy of each replica's buffers, (Q,)."""
        return [replica.model.buffers() for replica in self._replicas]

    def restore_buffers(self, buffers: Sequence[Tensor]) -> None:
        for replica, vector in zip(self._replicas, buffers, strict=True):
            replica.model.read_buffers(vector)

    def write_into(self, vector: Tensor) -> None:
        """Write later results, (P + Q,) or shorter if encoded, into a vector."""
        self._into = vector
        # `compute` writes into the vector if it can, else `outgoing` does
        if self.wire.is_plain and self._is_mine(vector):
            self.model.write_into(vector)

    def _is_mine(self, vector: Tensor) -> bool:
        """Whether a vector is where the gradient is computed."""
        return vector.device == self.model.weights.device

    def outgoing(self) -> Tensor:
        """Return the gradient and buffers as they travel, until the next `compute`.

        They are on the host, or in the vector of `write_into`.

        Call it once per batch: it updates `residual`.
        """
        into = self._into
        out = into if into is not None and self._is_mine(into) else None
        encoded = self.wire.encode(self.model.outgoing, out, self.residual, self._seed)
        if into is None:
            return self.device.download(encoded)
        return into.copy_(encoded) if out is None else encoded


@cache
def cut_batch(batch_size: int, devices: int, micro_batch: int | None) -> list[list[int]]:
    """Return the micro-batch sizes of each device's part of a batch."""
    parts = even_sizes(batch_size, devices)
    if micro_batch is None:
        return [[part] for part in parts]
    return [even_sizes(part, -(-part // micro_batch)) for part in parts]
