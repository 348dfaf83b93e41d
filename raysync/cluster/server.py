"""The parameter server actor: a shell around `training.store`."""

from __future__ import annotations

from dataclasses import dataclass

import ray
import torch

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


class Server:
    """Keeps the model. Calls of the controller are executed in their order."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._store: ParameterStore | None = None

    def reset(self, model: ModelPlan, update: Update) -> None:
        """Begin a run with fresh weights and a fresh optimizer."""
        flat = FlatModel(model.build())
        self._store = ParameterStore(flat.initial(), flat.size, update)

    def apply(self, plan: ApplyPlan, *gradients: Payload) -> int:
        """One update; returns the version it makes, and publishes nothing."""
        assert self._store is not None, "apply before reset"
        vectors = [incoming(gradient) for gradient in gradients]
        return self._store.apply(vectors, plan.samples, plan.workers, plan.progress)

    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def apply_and_publish(self, plan: ApplyPlan, *gradients: Payload) -> tuple[Payload, int]:
        """One update; the weights it makes, and their version."""
        version = self.apply(plan, *gradients)
        return self._weights(), version

    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def publish(self) -> tuple[Payload, int]:
        """The weights as they are, and their version."""
        assert self._store is not None, "publish before reset"
        return self._weights(), self._store.version

    def forget(self, worker: str) -> None:
        """A worker has left: its buffers no longer count."""
        assert self._store is not None, "forget before reset"
        self._store.forget(worker)

    def _weights(self) -> Payload:
        assert self._store is not None, "weights before reset"
        return outgoing(self._store.publish())
