"""The parameter server actor: a shell around `training.store`."""

from __future__ import annotations

from dataclasses import dataclass

import ray
import torch

from raysync.cluster.clock import now_s
from raysync.cluster.transport import Payload, incoming, outgoing
from raysync.config import Update
from raysync.training.flat import FlatModel
from raysync.training.models import ModelPlan
from raysync.training.store import ParameterStore


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """What the server must know of an Apply beside the gradients, in their order."""

    workers: tuple[str | None, ...]
    """Who pushed; None for one that has left since."""
    samples: tuple[int, ...]
    progress: float
    """Of the run before this update."""


@dataclass(frozen=True, slots=True)
class Ack:
    """Small: its arrival stamps the publication of a version."""

    version: int
    update_s: float
    """Seconds of computing on the server."""


class Server:
    """Keeps the model. Calls of the controller are executed in their order."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._store: ParameterStore | None = None

    def reset(self, model: ModelPlan, update: Update) -> None:
        """Begin a run with fresh weights and a fresh optimizer."""
        flat = FlatModel(model.build())
        self._store = ParameterStore(flat.initial(), flat.size, update)

    def apply(self, plan: ApplyPlan, *gradients: Payload) -> Ack:
        """One update; nothing is published."""
        began_s = now_s()
        assert self._store is not None, "apply before reset"
        vectors = [incoming(gradient) for gradient in gradients]
        version = self._store.apply(vectors, plan.samples, plan.workers, plan.progress)
        return Ack(version, now_s() - began_s)

    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def apply_and_publish(self, plan: ApplyPlan, *gradients: Payload) -> tuple[Payload, Ack]:
        """One update, and the weights it makes."""
        ack = self.apply(plan, *gradients)
        return self._weights(), ack

    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def publish(self) -> tuple[Payload, Ack]:
        """The weights as they are."""
        assert self._store is not None, "publish before reset"
        return self._weights(), Ack(self._store.version, 0.0)

    def forget(self, worker: str) -> None:
        """A worker has left: its buffers no longer count."""
        assert self._store is not None, "forget before reset"
        self._store.forget(worker)

    def _weights(self) -> Payload:
        assert self._store is not None, "weights before reset"
        return outgoing(self._store.publish())
