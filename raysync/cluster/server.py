"""The parameter server actor: a shell around `training.model_server`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import ray
import torch

from raysync.cluster.actor_errors import signed
from raysync.cluster.metrics_export import Exporter, UpdateSeconds
from raysync.cluster.names import Role
from raysync.cluster.placement import Place, here
from raysync.cluster.transport import Payload, incoming, outgoing
from raysync.config import Update
from raysync.record.metrics import RunLabels
from raysync.training.apply_plan import ApplyPlan
from raysync.training.flat import FlatModel
from raysync.training.model_server import Exchange, ModelServer, shard_of
from raysync.training.models import ModelPlan


class ServerPlan(Protocol):
    """What a server keeps in one run."""

    def exchange(self) -> Exchange:
        """Return it, with the initial weights."""


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The whole model, or an even part of it."""

    model: ModelPlan
    update: Update
    shard: int
    shards: int

    def exchange(self) -> Exchange:
        """As `ServerPlan.exchange`."""
        return shard_of(FlatModel(self.model.build()), self.update, self.shard, self.shards)


class Server:
    """Keeps the model, a stage or a shard of it. Calls of the controller are executed in their
    order.
    """

    def __init__(self, threads: int, role: Role) -> None:
        torch.set_num_threads(threads)
        self._role = role
        self._model: ModelServer | None = None
        self._exporter = Exporter()
        self._seconds = UpdateSeconds(self._exporter, None)

    def __repr__(self) -> str:
        return str(self._role)

    def reset(self, plan: ServerPlan, labels: RunLabels | None) -> Place:
        """Begin a run with fresh weights and a fresh optimizer; metrics are published under the
        labels, if there is one.
        """
        self._model = ModelServer(plan.exchange())
        self._seconds = UpdateSeconds(self._exporter, labels)
        return here(["cpu"])

    def receive(self, part: Payload) -> None:
        """Do nothing: Ray has brought the argument to this node, where an update will find it."""

    @signed()
    def combine(self, fields: list[Any], *arrived: Payload) -> float:
        """The first half of an update; returns this shard's part of the norm, if the gradient is to
        be clipped.
        """
        with self._seconds.timed():
            return self._ready.combine(ApplyPlan(*fields), incoming(*arrived))

    @signed()
    def apply(self, fields: list[Any], *arrived: Any) -> int:
        """One update; returns the version it makes, and publishes nothing.

        Args:
            fields: of an `ApplyPlan`.
            arrived: the gradients, and behind them, if delays are compensated, the weights that
                each was computed on; or the norms that the shards' `combine` returned.
        """
        plan = ApplyPlan(*fields)
        with self._seconds.timed():
            return self._ready.apply(plan, arrived if plan.combined else incoming(*arrived))

    @signed()
    def apply_and_publish(self, fields: list[Any], *arrived: Any) -> Payload:
        """One update; returns the weights it makes."""
        version = self.apply(fields, *arrived)
        return outgoing(self._ready.publish(version, 0))[0]

    @signed()
    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def publish(self, fields: list[int]) -> tuple[Payload, int]:
        """Return the weights as they are, and their version.

        Args:
            fields: that version, and the replica that pulls them, or `MEAN`.
        """
        self._seconds.tell()
        version, replica = fields
        return outgoing(self._ready.publish(version, replica))[0], version

    def forget(self, fields: list[str]) -> None:
        """A worker has left: its buffers no longer count."""
        self._ready.forget(*fields)

    @property
    def _ready(self) -> ModelServer:
        assert self._model is not None, "called before reset"
        return self._model
