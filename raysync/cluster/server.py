"""The parameter server actor: a shell around `training.store`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray
import torch

from raysync.cluster.placement import Place, here
from raysync.cluster.transport import Payload, incoming, outgoing
from raysync.config import Update
from raysync.training.flat import FlatModel
from raysync.training.models import ModelPlan
from raysync.training.store import ParameterStore, part_of


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """What the server must know of an Apply beside the gradients, in their order."""

    workers: tuple[str | None, ...]
    """Who pushed; None for one that has left since."""
    samples: tuple[int, ...]
    progress: float
    """Of the run before this update."""
    combined: bool = False
    """Whether `combine` was called before, for the norms of all shards, which then come in place of the gradients."""


class Server:
    """Keeps the model, or one shard of it. Calls of the controller are executed in their order."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        self._store: ParameterStore | None = None
        self._broken: Exception | None = None

    def reset(self, model: ModelPlan, update: Update, shard: int, shards: int) -> Place:
        """Begin a run with fresh weights and a fresh optimizer."""
        initial, size = part_of(FlatModel(model.build()), shard, shards)
        self._store, self._broken = ParameterStore(initial, size, update), None
        return here(["cpu"])

    def combine(self, plan: ApplyPlan, *gradients: Payload) -> float:
        """The first half of an update; returns this shard's part of the norm, if the gradient is to be clipped."""
        with self._sound() as store:
            return store.combine(incoming(*gradients), plan.samples, plan.workers)

    def apply(self, plan: ApplyPlan, *arrived: Any) -> int:
        """One update; returns the version it makes, and publishes nothing."""
        norms = arrived if plan.combined else (self.combine(plan, *arrived),)
        with self._sound() as store:
            return store.step(plan.progress, norms)

    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def apply_and_publish(self, plan: ApplyPlan, *arrived: Any) -> tuple[Payload, int]:
        """One update; the weights it makes, and their version."""
        version = self.apply(plan, *arrived)
        return self._weights(), version

    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def publish(self) -> tuple[Payload, int]:
        """The weights as they are, and their version."""
        with self._sound() as store:
            return self._weights(), store.version

    def forget(self, worker: str) -> None:
        """A worker has left: its buffers no longer count."""
        with self._sound() as store:
            store.forget(worker)

    def _weights(self) -> Payload:
        with self._sound() as store:
            return outgoing(store.publish())[0]

    @contextmanager
    def _sound(self) -> Iterator[ParameterStore]:
        """The store; an update that failed fails whatever comes after it, so that no model lacks it unnoticed."""
        assert self._store is not None, "called before reset"
        if self._broken is not None:
            raise self._broken
        try:
            yield self._store
        except Exception as error:
            self._broken = error
            raise
