"""The parameter server actor: a shell around `training.store`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
import torch

from raysync.cluster.messages import ApplyPlan
from raysync.cluster.metrics import Exporter, UpdateSeconds
from raysync.cluster.names import Role
from raysync.cluster.placement import Place, here
from raysync.cluster.transport import Payload, incoming, outgoing
from raysync.config import Update
from raysync.record.metrics import Title
from raysync.training.flat import FlatModel
from raysync.training.models import ModelPlan
from raysync.training.store import ParameterStore, part_of


class MissedUpdate(RuntimeError):
    """An update failed before this actor could see it."""


class Server:
    """Keeps the model, or one shard of it. Calls of the controller are executed in their order."""

    def __init__(self, threads: int, role: Role) -> None:
        torch.set_num_threads(threads)
        self._role = role
        self._store: ParameterStore | None = None
        self._broken: Exception | None = None
        self._exporter = Exporter()
        self._seconds = UpdateSeconds(self._exporter, None)

    def __repr__(self) -> str:
        return str(self._role)

    def reset(self, model: ModelPlan, update: Update, shard: int, shards: int, title: Title | None) -> Place:
        """Begin a run with fresh weights and a fresh optimizer; metrics are published under the title, if there is one."""
        initial, size = part_of(FlatModel(model.build()), shard, shards)
        self._store, self._broken = ParameterStore(initial, size, update), None
        self._seconds = UpdateSeconds(self._exporter, title)
        return here(["cpu"])

    def receive(self, part: Payload) -> None:
        """Do nothing: Ray has brought the argument to this node, where an update will find it."""

    def combine(self, fields: list[Any], *arrived: Payload) -> float:
        """The first half of an update; returns this shard's part of the norm, if the gradient is to be clipped."""
        plan = ApplyPlan(*fields)
        with self._seconds.timed(), self._sound(at=plan.version - 1) as store:
            return _combine(store, plan, arrived)

    def apply(self, fields: list[Any], *arrived: Any) -> int:
        """One update; returns the version it makes, and publishes nothing.

        Args:
            fields: of an `ApplyPlan`.
            arrived: the gradients, and behind them, if delays are compensated, the weights that each was computed on.
        """
        plan = ApplyPlan(*fields)
        with self._seconds.timed(), self._sound(at=plan.version - 1) as store:
            return _apply(store, plan, arrived)

    def apply_and_publish(self, fields: list[Any], *arrived: Any) -> Payload:
        """One update; the weights it makes."""
        plan = ApplyPlan(*fields)
        with self._seconds.timed(), self._sound(at=plan.version - 1) as store:
            _apply(store, plan, arrived)
            return outgoing(store.publish())[0]

    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def publish(self, version: int) -> tuple[Payload, int]:
        """The weights as they are at that version, and the version."""
        self._seconds.tell()
        with self._sound(at=version) as store:
            return outgoing(store.publish())[0], store.version

    def forget(self, worker: str) -> None:
        """A worker has left: its buffers no longer count."""
        with self._sound() as store:
            store.forget(worker)

    @contextmanager
    def _sound(self, at: int | None = None) -> Iterator[ParameterStore]:
        """The store; an update that failed fails whatever comes after it, so that no model lacks it unnoticed.

        Args:
            at: the version that the model must have come to. It has not where a call for an update never
                began, because Ray had lost one of its arguments; None: any.
        """
        assert self._store is not None, "called before reset"
        if self._broken is not None:
            raise self._broken
        try:
            if at is not None and self._store.version != at:
                raise MissedUpdate(f"the model is at version {self._store.version}, not at {at}")
            yield self._store
        except Exception as error:
            self._broken = error
            raise


def _combine(store: ParameterStore, plan: ApplyPlan, arrived: Sequence[Payload]) -> float:
    vectors, pushes = incoming(*arrived), len(plan.samples)
    store.enter(plan.phase, plan.progress)
    return store.combine(vectors[:pushes], plan.samples, plan.workers, plan.staleness, vectors[pushes:])


def _apply(store: ParameterStore, plan: ApplyPlan, arrived: Sequence[Any]) -> int:
    return store.step(plan.progress, arrived if plan.combined else [_combine(store, plan, arrived)])
