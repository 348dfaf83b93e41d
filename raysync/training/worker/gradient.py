"""The arithmetic of one worker: weights in, gradient out.

Shape legend: P = trainable parameters, Q = numbers of float32 that all buffers take.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

from torch import Tensor, nn

from raysync.config import WorkerGroup
from raysync.core.finding import Finding
from raysync.training.data.batch_reader import BatchReader, even_sizes
from raysync.training.data.batch_structure import batch_to
from raysync.training.tasks.task import Task
from raysync.training.worker.compiling import Loss, compiled
from raysync.training.worker.device import Device, seconds_between
from raysync.training.worker.flat import FlatModel
from raysync.training.worker.not_finite import first_not_finite
from raysync.training.worker.precision import computing_in
from raysync.training.worker.wire import FRACTION, Wire

PLAIN = WorkerGroup()
"""Workers that compute in float32, without a compiler."""
BatchPart = tuple[Any, float]
"""A part of a batch, and its share of the batch's samples."""


class _Replica:
    """The model on one device."""

    def __init__(self, loss: Loss, module: nn.Module, device: str, group: WorkerGroup) -> None:
        self.device = Device(device)
        self.model = FlatModel(module.to(device).train())
        self._loss = loss
        self._precision = group.precision
        self._spans: list[tuple[Any, Any]] = []
        """The marks before and after each part of the last batch."""

    def compute(self, parts: Sequence[BatchPart]) -> list[Tensor]:
        """Leave the gradient of the mean losses of some parts, each times its share, in
        `model.outgoing`; return these losses, which a GPU may still be computing.
        """
        self._spans.clear()
        self.model.begin_gradient()
        losses = [self._add(batch, share) for batch, share in parts]
        self.model.write_gradient()
        return losses

    def _add(self, batch: Any, share: float) -> Tensor:
        if self.device.copies:
            batch = batch_to(batch, self.device.upload)
        begin = self.device.mark()
        with computing_in(self._precision, self.model.weights.device):
            loss = self._loss(self.model.module, batch)
            if share < 1:
                loss = loss * share
        loss.backward()  # type: ignore[no-untyped-call]
        self._spans.append((begin, self.device.mark()))
        return loss.detach()

    def device_s(self) -> float:
        """Return the seconds that a GPU took for the last batch, which it has computed; 0 on a
        CPU.
        """
        return sum(seconds_between(*span) for span in self._spans)


class GradientComputation:
    """Computes gradients on one or several devices.

    With several devices, each has a replica of the model and takes an equal part of the batch;
    their gradients, weighted by samples, are added before the push (LagTuner, section 5.1:
    workers of 4 GPUs). Without batch-norm that is the gradient of the whole batch; batch-norm
    normalises each part by itself, as in torch's DataParallel. The mean of the replicas' running
    statistics is pushed (of what has no mean, those of the first); each replica continues with its
    own.

    With a `micro_batch` a device takes its part in pieces of at most so many samples, one after
    another, and adds their gradients up: the same gradient, in less memory."""

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
    ) -> None:
        """
        Args:
            module: fresh; it is moved to the first device, and copied to the others.
            task: gives the loss.
            devices: their names in torch; `cpu` may occur several times.
            group: how its workers compute: in which precision, and whether torch compiles the loss,
                which it does for one device only.
            micro_batch: the largest number of samples that a device computes at once; None: all.
            wire: the format in which its gradients travel: see `training.worker.wire`.
            shards: the number of parts that they travel in.
            fraction: the share of them that `top-k` sends.
            draws_ahead: whether to draw the batch of the next clock while a GPU computes this one:
                for a computation that serves one worker only. See `draw_ahead`.
        """
        modules = [module, *(copy.deepcopy(module) for _ in devices[1:])]
        loss = compiled(task.loss) if group.compile else task.loss
        self._replicas = [
            _Replica(loss, copied, device, group)
            for copied, device in zip(modules, devices, strict=True)
        ]
        self._distinct = list(
            {replica.device.name: replica.device for replica in self._replicas}.values()
        )
        self.model = self._replicas[0].model
        self.wire = Wire(
            name=wire,
            parameters=self.model.size,
            buffers=self.model.buffer_size,
            shards=shards,
            fraction=fraction,
        )
        """The format of `outgoing`."""
        self.residual: Tensor | None = None
        """What earlier pushes have lost as they were encoded, (P,); see `Wire.encode`."""
        self._seed = 0
        """That of the latest batch."""
        self._micro_batch = micro_batch
        self._draws_ahead = draws_ahead and any(device.copies for device in self._distinct)
        self._following: tuple[int, list[int]] | None = None
        """The clock and the sizes of the batch behind the last one."""
        self._drawn: tuple[tuple[int, list[int]], Future[list[Any]]] | None = None
        """The clock and the sizes of a batch that was drawn ahead, and its parts."""
        self.not_finite: Finding | None = None
        """What was not finite in the last batch; None: everything was."""
        self._given: Tensor | None = None
        """The vector that was given to write into."""
        # Replicas on one device draw from one generator: so they run in turn.
        apart = len(set(devices)) == len(devices)
        self._threads = ThreadPoolExecutor(len(devices)) if len(devices) > 1 and apart else None

    def read_weights(self, parts: Sequence[Tensor]) -> None:
        """Take the parameters from a vector (P + Q,) of the server, in one or several parts; in
        none if they are in the vector that was given for them.

        They are copied to the first device, and from there to the others.
        """
        first, *others = self._replicas
        first.model.read_weights(*(first.device.upload(part) for part in parts))
        for replica in others:
            replica.model.copy_weights(first.model)

    def move_weights(self, vector: Tensor) -> None:
        """Let the weights of the first device, which is the CPU, be in a vector (P + Q,) that is
        given for them, from now on: before anything is computed, since a model may keep views of
        its parameters.
        """
        self.model.move_weights(vector)

    def compute(self, reader: BatchReader, clock: int, batch_size: int) -> float:
        """Run one batch forward and backward at the model's present weights.

        Afterwards `outgoing` gives the gradient of the batch's mean loss. What the model draws
        (dropout) is a function of (seed, slot, clock), as the batch is.

        Args:
            reader: has the batches of the slot.
            clock: the number of the batch.
            batch_size: in samples, at least the number of devices.

        Returns:
            The batch's mean loss.
        """
        assert batch_size >= len(self._replicas), (
            "a device without a sample would make the loss NaN, which reads as diverged"
        )
        sizes = cut_batch(batch_size, len(self._replicas), self._micro_batch)
        pieces = [size for each in sizes for size in each]
        batches = iter(self._draw(reader, clock, pieces))
        work = [[(next(batches), size / batch_size) for size in each] for each in sizes]
        self._seed = reader.seed(clock)
        losses = self._launch(self._seed, work)
        self._following = clock + 1, pieces
        if self._draws_ahead:
            self.draw_ahead(reader)
        if len(self._replicas) > 1:
            self._join()
        loss = sum(loss.item() for loss in losses)
        model = self.model
        self.not_finite = first_not_finite(
            loss, model.gradient, model.weights, model.parameters, reader, (clock, batch_size)
        )
        return loss

    @property
    def device_s(self) -> float:
        """The seconds in which a GPU computed the last batch, forward and backward, without copies;
        with several the longest. 0 on CPUs, which compute while one waits for them.
        """
        return max(replica.device_s() for replica in self._replicas)

    def _draw(self, reader: BatchReader, clock: int, pieces: list[int]) -> list[Any]:
        """Return a batch in pieces, which may have been drawn ahead."""
        drawn, self._drawn = self._drawn, None
        if drawn is not None and drawn[0] == (clock, pieces):
            return drawn[1].result()
        return reader.read(clock, pieces)

    def draw_ahead(self, reader: BatchReader) -> None:
        """Draw the batch that comes next if the clocks go on and the batch size stays, unless that
        is drawn already; if it comes, so does the error that drawing it may have raised.
        """
        if self._drawn is None and self._following is not None:
            parts: Future[list[Any]] = Future()
            try:
                parts.set_result(reader.read(*self._following))
            except Exception as error:
                parts.set_exception(error)
            self._drawn = self._following, parts

    def _launch(self, seed: int, work: Sequence[Sequence[BatchPart]]) -> list[Tensor]:
        """Begin to compute the work of all replicas; return the losses."""
        for index, device in enumerate(self._distinct):
            # With equal seeds sample i of every part would have the same mask.
            device.seed(seed + index)
        run_all = map if self._threads is None else self._threads.map
        computed = run_all(_Replica.compute, self._replicas, work)
        return [loss for losses in computed for loss in losses]

    def read_buffers(self, vector: Tensor) -> None:
        """Give all replicas the buffers of a vector (P + Q,): for a computation that serves several
        workers in turn.
        """
        for replica in self._replicas:
            replica.model.read_buffers(vector)

    def write_into(self, vector: Tensor) -> None:
        """Let the gradient with the buffers behind it be written into a vector of this process's
        memory, as long as that is not another one: by `compute` itself, if the first device is the
        CPU and it travels as it is; otherwise by `outgoing`.

        Args:
            vector: (P + Q,), or of fewer in another format than float32.
        """
        self._given = vector
        if self.wire.is_plain and not self._replicas[0].device.copies:
            self.model.write_into(vector)

    def outgoing(self) -> Tensor:
        """Return the gradient with the buffers behind it as it travels, (P + Q,) in float32, in
        this process's memory: in the vector that was given for it, if there is one; valid until the
        next `compute`. It is asked for once: then its loss is in `residual`.
        """
        device = self._replicas[0].device
        given = None if device.copies else self._given
        encoded = self.wire.encode(self.model.outgoing, given, self.residual, self._seed)
        if self._given is None:
            return device.download(encoded)
        return self._given.copy_(encoded) if device.copies else encoded

    def _join(self) -> None:
        """Add the replicas' parts of the gradient, and average their buffers, in `outgoing` of the
        first replica.
        """
        whole, size = self.model.outgoing, self.model.size
        rows = [whole[size:]]
        for replica in self._replicas[1:]:
            other = replica.model.outgoing.to(whole.device)
            whole[:size].add_(other[:size])
            rows.append(other[size:].clone())
        whole[size:].copy_(self.model.layout.slots.mean(rows))


@cache
def cut_batch(batch_size: int, devices: int, micro_batch: int | None) -> list[list[int]]:
    """Return the sizes of the micro-batches of each device's part of a batch."""
    parts = even_sizes(batch_size, devices)
    if micro_batch is None:
        return [[part] for part in parts]
    return [even_sizes(part, -(-part // micro_batch)) for part in parts]
