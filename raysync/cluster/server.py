"""The parameter server actor: a shell around `training.model_server`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import ray
from torch import Tensor

from raysync.cluster import direct_transport, serving
from raysync.cluster.actor_errors import signed
from raysync.cluster.actor_spec import Role
from raysync.cluster.devices import Place, devices_of_actor, here
from raysync.cluster.direct_vectors import Buffer
from raysync.cluster.monitoring import Exporter, UpdateSeconds
from raysync.cluster.shared_memory import Handle
from raysync.cluster.threads import Threads, use_threads
from raysync.cluster.transport import MEMORY, Payload, forget_all, incoming, outgoing, written
from raysync.config import Update
from raysync.record.metrics_registry import RunLabels
from raysync.training.apply_plan import ApplyPlan
from raysync.training.flat import FlatModel
from raysync.training.initial_model import InitialModel
from raysync.training.model_server import Exchange, ModelServer, shard_of
from raysync.training.vector_threads import VectorThreads


class ServerPlan(Protocol):
    """The part of the model that a server keeps in one run."""

    @property
    def is_direct(self) -> bool:
        """Whether vectors travel by Ray Direct Transport."""

    @property
    def on_gpu(self) -> bool:
        """Whether they do so between GPUs, one of which has the model."""

    def exchange(self, model: InitialModel, device: str, threads: VectorThreads) -> Exchange:
        """Return that part with its initial weights and its update, on a torch device, which on the
        CPU those threads share.
        """


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The whole model, or an even part of it."""

    seed: int
    update: Update
    shard: int
    shards: int
    wire: str = "float32"
    """The format in which gradients arrive."""
    is_direct: bool = False
    on_gpu: bool = False

    def exchange(self, model: InitialModel, device: str, threads: VectorThreads) -> Exchange:
        """See `ServerPlan.exchange`."""
        whole = FlatModel(model.build(self.seed).to(device))
        return shard_of(whole, self.update, self.shard, self.shards, self.wire, threads)


class Server:
    """It keeps the model, a stage or a shard of it. Calls of the controller are executed in their
    order.
    """

    def __init__(self, threads: Threads, role: Role) -> None:
        use_threads(threads)
        self._threads = VectorThreads(threads.of_updates(), threads.here())
        self._role = role
        self._model: ModelServer | None = None
        self._device = "cpu"
        self._exporter = Exporter()
        self._seconds = UpdateSeconds(self._exporter, None)

    def __repr__(self) -> str:
        return str(self._role)

    def serve(self, ends: serving.Ends, last: int) -> None:
        """Carry out the calls that come over a pipe; see `serving.serve`."""
        serving.serve(self, ends, last)

    def reset(
        self,
        plan: ServerPlan,
        model: InitialModel,
        labels: RunLabels | None,
        data: npt.NDArray[np.uint8] | None = None,
    ) -> Place:
        """Begin a run, or go on with one; metrics are published under the labels, if there are any.

        Args:
            plan: the part of the model that it keeps.
            model: the task, and how its model begins.
            labels: those of the run.
            data: what `snapshot` returned; None: fresh weights and a fresh optimizer.
        """
        self._device = devices_of_actor()[0] if plan.on_gpu else "cpu"
        if plan.is_direct:
            direct_transport.start_here(str(self._role), self._device, on_gpu=plan.on_gpu)
        forget_all(self._device)
        self._model = ModelServer(plan.exchange(model, self._device, self._threads))
        if data is not None:
            self._model.restore(data.tobytes())
        self._seconds = UpdateSeconds(self._exporter, labels)
        return here([self._device])

    @signed
    def combine(self, fields: list[Any], *arrived: Payload) -> float:
        """Make the first half of an update: combine the gradients.

        Returns:
            This shard's part of the norm, for updates that clip the gradient.
        """
        with self._seconds.timed():
            return self._ready.combine(ApplyPlan(*fields), self._vectors(arrived))

    @signed
    def apply(self, fields: list[Any], *arrived: Any) -> int:
        """Make an update, and publish nothing; returns the version that it makes.

        Args:
            fields: those of an `ApplyPlan`.
            arrived: the gradients, and behind them, if delays are compensated, the weights that
                each was computed on; or the norms that the shards' `combine` returned.
        """
        plan = ApplyPlan(*fields)
        with self._seconds.timed():
            return self._ready.apply(plan, arrived if plan.combined else self._vectors(arrived))

    @signed
    def apply_and_publish(
        self, fields: list[Any], *arrived: Any, into: Handle | Buffer | None = None
    ) -> Payload:
        """Make an update; returns the weights that it makes, or, if they are written into a slot of
        shared memory or a buffer, its handle.
        """
        version = self.apply(fields, *arrived)
        return self._published(version, 0, into)

    @signed
    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def publish(
        self, fields: list[int], into: Handle | Buffer | None = None
    ) -> tuple[Payload, int]:
        """Return the weights as they are, and their version.

        Args:
            fields: that version, and the replica that pulls them, or `MEAN`.
            into: the slot of shared memory, or the buffer, that they are to be written into; then
                its handle is returned.
        """
        self._seconds.tell()
        version, replica = fields
        return self._published(version, replica, into), version

    def _published(self, version: int, replica: int, into: Handle | Buffer | None) -> Payload:
        weights = self._ready.publish(version, replica)
        if into is None:
            return outgoing(weights)[0]
        with written(into) as slot:
            self._threads.copy(weights, slot)
        return into

    @signed
    def buffer(self, fields: Buffer) -> Tensor:
        """Return the weights that were published into a buffer, for others to read there."""
        return MEMORY.buffer(fields)

    @signed
    def take(self, fields: list[int], gradient: Tensor) -> None:
        """Keep a gradient that was read from its worker's memory, under a number; updates name it
        by that.
        """
        [number] = fields
        MEMORY.keep(number, gradient)

    def free(self, fields: list[list[int]]) -> None:
        """Forget the gradients under those numbers: they have been applied, or dropped."""
        [numbers] = fields
        MEMORY.free(numbers)

    def forget(self, fields: list[str]) -> None:
        """Forget a worker that has left: its buffers no longer count."""
        self._ready.forget(*fields)

    @signed
    def statistics(self, fields: list[str]) -> Payload:
        """Return its part of the vector whose end are the buffers of a worker."""
        return outgoing(self._ready.statistics(*fields))[0]

    @signed
    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def snapshot(self, fields: list[Any], *arrived: Payload) -> tuple[npt.NDArray[np.uint8], int]:
        """Return its whole state as the contents of a safetensors file, and its version. The file
        is an array, since Ray copies bytes wherever they come.

        Args:
            fields: the names of the vectors, and the version that the model must have.
            arrived: its parts of vectors to be kept with the state.
        """
        names, version = fields
        data = self._ready.snapshot(names, self._vectors(arrived), version)
        return np.frombuffer(data, np.uint8), version

    @signed
    def saved(self, fields: list[str]) -> Payload:
        """Return its part of a vector that was kept with the state; it can be asked for once."""
        return outgoing(self._ready.saved(*fields))[0]

    def _vectors(self, arrived: Sequence[Payload]) -> list[Tensor]:
        """Return arrived vectors where the model is; those that were kept in a checkpoint come by
        the CPU.
        """
        return [vector.to(self._device) for vector in incoming(*arrived)]

    @property
    def _ready(self) -> ModelServer:
        assert self._model is not None, "called before reset"
        return self._model
