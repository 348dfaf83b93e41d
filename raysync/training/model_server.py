"""What a parameter server does with the calls that it gets, on every backend: versions, and no
update missed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

from raysync.config import Update
from raysync.training.apply_plan import MEAN, ApplyPlan
from raysync.training.flat import FlatModel
from raysync.training.parameter_store import ParameterStore, part_of


class MissedUpdate(RuntimeError):
    """An update failed before this server could see it."""


class Exchange(Protocol):
    """What workers that push to one server make of their gradients. Shapes: P parameters, Q
    elements of buffers.
    """

    def apply(self, plan: ApplyPlan, vectors: Sequence[Tensor]) -> None:
        """Make one update of gradients with the buffers behind them, (P + Q,) each."""

    def weights(self, replica: int) -> Tensor:
        """Return what that replica pulls now, (P + Q,), which the next update may overwrite."""

    def mean(self) -> Tensor:
        """Return the mean of the replicas, (P + Q,), which is what is evaluated."""

    def forget(self, worker: str) -> None:
        """A worker has left: its buffers no longer count."""


class OneStore:
    """One optimizer for all: pushes become updates, and every worker pulls the same weights."""

    def __init__(self, initial: Tensor, size: int, update: Update) -> None:
        """
        Args:
            initial: (P + Q,).
            size: P.
            update: optimizer, schedule and combination.
        """
        self.store = ParameterStore(initial, size, update)

    def combine(self, plan: ApplyPlan, vectors: Sequence[Tensor]) -> float:
        """Make the first half of an update; returns this shard's part of the norm, if the gradient
        is to be clipped.

        Args:
            plan: of the update.
            vectors: the gradients and, if delays are compensated, behind them the weights that each
                was computed on.
        """
        pushes = len(plan.samples)
        self.store.enter(plan.phase, plan.progress)
        return self.store.combine(
            vectors[:pushes], plan.samples, plan.workers, plan.staleness, vectors[pushes:]
        )

    def apply(self, plan: ApplyPlan, vectors: Sequence[Any]) -> None:
        """As `Exchange.apply`; where `combine` was called before, the norms of all shards take the
        place of the vectors.
        """
        self.store.step(plan.progress, vectors if plan.combined else [self.combine(plan, vectors)])

    def weights(self, replica: int) -> Tensor:
        """As `Exchange.weights`; the same for every replica."""
        return self.store.publish()

    def mean(self) -> Tensor:
        """As `Exchange.mean`."""
        return self.store.publish()

    def forget(self, worker: str) -> None:
        """As `Exchange.forget`."""
        self.store.forget(worker)


def shard_of(model: FlatModel, update: Update, shard: int = 0, shards: int = 1) -> OneStore:
    """Return a fresh store of a model, or of an even part of it."""
    return OneStore(*part_of(model, shard, shards), update)


class ModelServer:
    """The model, a stage of it or a shard of it, at one version after another."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.version = 0
        self._broken: Exception | None = None

    def combine(self, plan: ApplyPlan, vectors: Sequence[Tensor]) -> float:
        """As `OneStore.combine`."""
        assert isinstance(self.exchange, OneStore), (
            "replicas that mix have a server each, without shards"
        )
        with self._sound(plan.version - 1):
            return self.exchange.combine(plan, vectors)

    def apply(self, plan: ApplyPlan, vectors: Sequence[Any]) -> int:
        """Make one update; returns its version.

        Raises:
            MissedUpdate: the model is not at the version before it.
        """
        with self._sound(plan.version - 1):
            self.exchange.apply(plan, vectors)
            self.version += 1
        return self.version

    def publish(self, version: int, replica: int) -> Tensor:
        """Return the weights (P + Q,) of a replica, or their `MEAN`, at that version; the next
        update may overwrite them.
        """
        with self._sound(version):
            return self.exchange.mean() if replica == MEAN else self.exchange.weights(replica)

    def forget(self, worker: str) -> None:
        """As `Exchange.forget`."""
        with self._sound(self.version):
            self.exchange.forget(worker)

    @contextmanager
    def _sound(self, version: int) -> Iterator[None]:
        """After a failed update every later call raises it again, so that no published model misses
        it unnoticed.

        Args:
            version: what the model must have come to. It has not where a call for an update never
                began, because one of its arguments was lost.
        """
        if self._broken is not None:
            raise self._broken
        try:
            if self.version != version:
                raise MissedUpdate(f"the model is at version {self.version}, not at {version}")
            yield
        except Exception as error:
            self._broken = error
            raise
