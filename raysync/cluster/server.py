"""The parameter server actor: a shell around `training.model_server`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import ray
import torch

from raysync.cluster import serving
from raysync.cluster.actor_errors import signed
from raysync.cluster.actor_spec import Role
from raysync.cluster.devices import Place, here
from raysync.cluster.monitoring import Exporter, UpdateSeconds
from raysync.cluster.shared_memory import Handle
from raysync.cluster.threads import Threads, use_threads
from raysync.cluster.transport import Payload, forget_all, incoming, outgoing, written
from raysync.config import Update
from raysync.record.metrics_registry import RunLabels
from raysync.training.apply_plan import ApplyPlan
from raysync.training.flat import FlatModel
from raysync.training.initial_model import InitialModel
from raysync.training.model_server import Exchange, ModelServer, shard_of


class ServerPlan(Protocol):
    """The part of the model that a server keeps in one run."""

    def exchange(self, model: InitialModel) -> Exchange:
        """Return that part with its initial weights and its update."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The whole model, or an even part of it."""

    seed: int
    update: Update
    shard: int
    shards: int
    wire: str = "float32"
    """The format in which gradients arrive."""

    def exchange(self, model: InitialModel) -> Exchange:
        """See `ServerPlan.exchange`."""
        whole = FlatModel(model.build(self.seed))
        return shard_of(whole, self.update, self.shard, self.shards, self.wire)


class Server:
    """It keeps the model, a stage or a shard of it. Calls of the controller are executed in their
    order.
    """

    def __init__(self, threads: Threads, role: Role) -> None:
        use_threads(threads)
        self._threads, self._role = threads, role
        self._model: ModelServer | None = None
        self._size = 0
        """The length of its vectors."""
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
        forget_all()
        exchange = plan.exchange(model)
        self._model, self._size = ModelServer(exchange), len(exchange.weights(0))
        if data is not None:
            self._model.restore(data.tobytes())
        self._seconds = UpdateSeconds(self._exporter, labels)
        return here(["cpu"])

    @signed
    def combine(self, fields: list[Any], *arrived: Payload) -> float:
        """Make the first half of an update: combine the gradients.

        Returns:
            This shard's part of the norm, for updates that clip the gradient.
        """
        plan = self._plan(fields)
        with self._seconds.timed():
            return self._ready.combine(plan, incoming(*arrived))

    @signed
    def apply(self, fields: list[Any], *arrived: Any) -> int:
        """Make an update, and publish nothing; returns the version that it makes.

        Args:
            fields: those of an `ApplyPlan`.
            arrived: the gradients, and behind them, if delays are compensated, the weights that
                each was computed on; or the norms that the shards' `combine` returned.
        """
        plan = self._plan(fields)
        with self._seconds.timed():
            return self._ready.apply(plan, arrived if plan.combined else incoming(*arrived))

    @signed
    def apply_and_publish(
        self, fields: list[Any], *arrived: Any, into: Handle | None = None
    ) -> Payload:
        """Make an update; returns the weights that it makes, or, if they are written into a slot of
        shared memory, its handle.
        """
        version = self.apply(fields, *arrived)
        return self._published(version, 0, into)

    @signed
    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def publish(self, fields: list[int], into: Handle | None = None) -> tuple[Payload, int]:
        """Return the weights as they are, and their version.

        Args:
            fields: that version, and the replica that pulls them, or `MEAN`.
            into: the slot of shared memory that they are to be written into; then its handle is
                returned.
        """
        self._seconds.tell()
        version, replica = fields
        return self._published(version, replica, into), version

    def _published(self, version: int, replica: int, into: Handle | None) -> Payload:
        weights = self._ready.publish(version, replica)
        if into is None:
            return outgoing(weights)[0]
        with written(into) as slot:
            slot.copy_(weights)
        return into

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
        data = self._ready.snapshot(names, incoming(*arrived), version)
        return np.frombuffer(data, np.uint8), version

    @signed
    def saved(self, fields: list[str]) -> Payload:
        """Return its part of a vector that was kept with the state; it can be asked for once."""
        return outgoing(self._ready.saved(*fields))[0]

    def _plan(self, fields: list[Any]) -> ApplyPlan:
        """Return the plan of an update, and give torch the threads for it."""
        plan = ApplyPlan(*fields)
        torch.set_num_threads(self._threads.of_update(len(plan.samples), self._size))
        return plan

    @property
    def _ready(self) -> ModelServer:
        assert self._model is not None, "called before reset"
        return self._model
