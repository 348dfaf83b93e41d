"""The arithmetic of one worker: weights in, gradient out.

Shape legend: P = trainable parameters, Q = elements of all buffers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from raysync.training.batch_reader import BatchReader, even_sizes
from raysync.training.batch_structure import batch_to
from raysync.training.device import Device, use_tf32
from raysync.training.flat import FlatModel
from raysync.training.task import Task

Part = tuple[Any, float]
"""A part of a batch, and its share of the batch's samples."""


class _Replica:
    """The model on one device."""

    def __init__(self, task: Task, module: nn.Module, device: str, precision: str) -> None:
        self.device = Device(device)
        self.model = FlatModel(module.to(device).train())
        self._task = task
        self._kind = device.partition(":")[0]
        self._precision = precision

    def compute(self, parts: Sequence[Part]) -> float:
        """Leave the gradient of the mean losses of some parts, each times its share, in
        `model.outgoing`; return the sum of these losses.
        """
        self.model.gradient.zero_()
        use_tf32(self._precision != "float32")
        total = sum(self._add(batch, share) for batch, share in parts)
        self.model.write_buffers()
        return total

    def _add(self, batch: Any, share: float) -> float:
        batch = batch_to(batch, self.device.upload)
        with torch.autocast(self._kind, dtype=torch.bfloat16, enabled=self._precision == "bf16"):
            loss = self._task.loss(self.model.module, batch) * share
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()


class GradientComputation:
    """Computes gradients on one or several devices.

    With several devices, each has a replica of the model and takes an equal part of the batch;
    their gradients, weighted by samples, are added before the push (LagTuner, section 5.1:
    workers of 4 GPUs). Without batch-norm that is the gradient of the whole batch; batch-norm
    normalises each part by itself, as in torch's DataParallel. The mean of the replicas' running
    statistics is pushed; each replica continues with its own.

    With a `micro_batch` a device takes its part in pieces of at most so many samples, one after
    another, and adds their gradients up: the same gradient, in less memory."""

    def __init__(
        self,
        module: nn.Module,
        task: Task,
        devices: Sequence[str] = ("cpu",),
        precision: str = "float32",
        micro_batch: int | None = None,
    ) -> None:
        """
        Args:
            module: fresh; it is moved to the first device, and copied to the others.
            task: gives the loss.
            devices: their names in torch; `cpu` may occur several times.
            precision: `float32`, `tf32` to round factors on GPUs that support it, or `bf16` for
                torch's autocast of the forward pass.
            micro_batch: the largest number of samples that a device computes at once; None: all.
        """
        modules = [module, *(copy.deepcopy(module) for _ in devices[1:])]
        self._replicas = [
            _Replica(task, copied, device, precision)
            for copied, device in zip(modules, devices, strict=True)
        ]
        self._distinct = list(
            {replica.device.name: replica.device for replica in self._replicas}.values()
        )
        self.model = self._replicas[0].model
        self._micro_batch = micro_batch
        self._given: Tensor | None = None
        """The vector that was given to write into."""
        # Replicas on one device draw from one generator: so they run in turn.
        apart = len(set(devices)) == len(devices)
        self._threads = ThreadPoolExecutor(len(devices)) if len(devices) > 1 and apart else None

    def read_weights(self, parts: Sequence[Tensor]) -> None:
        """Take the parameters from a vector (P + Q,) of the server, in one or several parts."""
        for replica in self._replicas:
            replica.model.read_weights(*(replica.device.upload(part) for part in parts))

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
        sizes = [self._pieces(size) for size in even_sizes(batch_size, len(self._replicas))]
        batches = iter(reader.read(clock, [size for each in sizes for size in each]))
        work = [[(next(batches), size / batch_size) for size in each] for each in sizes]
        for index, device in enumerate(self._distinct):
            # With equal seeds sample i of every part would have the same mask.
            device.seed(reader.seed(clock) + index)
        if len(work) == 1:
            return self._replicas[0].compute(work[0])
        run_all = map if self._threads is None else self._threads.map
        losses = list(run_all(_Replica.compute, self._replicas, work))
        self._join()
        return sum(losses)

    def _pieces(self, size: int) -> list[int]:
        """Return the sizes of the micro-batches of a device's part of a batch."""
        if self._micro_batch is None:
            return [size]
        return even_sizes(size, -(-size // self._micro_batch))

    def read_buffers(self, vector: Tensor) -> None:
        """Give all replicas the buffers of a vector (P + Q,): for a computation that serves several
        workers in turn.
        """
        for replica in self._replicas:
            replica.model.read_buffers(vector)

    def write_into(self, vector: Tensor) -> None:
        """Let `compute` write the gradient with the buffers behind it into a vector (P + Q,) of
        this process's memory, as long as that is not another one: in place, if the first device is
        the CPU; `outgoing` copies it from a GPU.
        """
        self._given = vector
        if not self._replicas[0].device.copies:
            self.model.write_into(vector)

    def outgoing(self) -> Tensor:
        """Return the gradient with the buffers behind it, (P + Q,), in this process's memory: in
        the vector that was given for it, if there is one; valid until the next `compute`.
        """
        device = self._replicas[0].device
        if self._given is not None and device.copies:
            return self._given.copy_(self.model.outgoing)
        return device.download(self.model.outgoing)

    def _join(self) -> None:
        """Add the replicas' parts of the gradient, and average their buffers, in `outgoing` of the
        first replica.
        """
        whole, size = self.model.outgoing, self.model.size
        for replica in self._replicas[1:]:
            whole.add_(replica.model.outgoing.to(whole.device))
        whole[size:].div_(len(self._replicas))
