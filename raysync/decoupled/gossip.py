"""The updates of replicas that each have an optimizer, and average gradients or weights with one
another.

Shape legend: S = groups, P = trainable parameters of the stage, Q = numbers of float32 that
its buffers take.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raysync.config import Update
from raysync.decoupled.cut import Part
from raysync.paradigms.decoupled import Decoupled
from raysync.training.files.state_file import State, check_fits
from raysync.training.server.apply_plan import ApplyPlan
from raysync.training.server.model_server import Exchange, OneStore
from raysync.training.server.parameter_groups import ParameterGroup, parameter_groups
from raysync.training.server.parameter_store import ParameterStore
from raysync.training.worker.buffers import Slots
from raysync.training.worker.flat import FlatModel


class Gossip:
    """Each replica has its own weights and optimizer; every H-th round the matrix P mixes gradients
    or weights.

        grad     g_s <- sum_r P[s, r] g_r, before the optimizers' steps
        weight   x_s <- sum_r P[s, r] x_r, after them

    Source: a reading of Pham and Ahn (2025), whose way of communication is not public. A round is
    an update under BSP: the pushes of all replicas that have not left; where one has, the shares of
    the others are scaled to a sum of 1. `lr_scaling: linear` multiplies by S, so that `grad` under
    full averaging equals one server with one optimizer. Each replica has a momentum of its own,
    which is not mixed.
    """

    def __init__(
        self,
        initial: Tensor,
        size: int,
        update: Update,
        matrix: Sequence[Sequence[float]],
        mix: str,
        every: int,
        groups: Sequence[ParameterGroup] = (),
        slots: Slots | None = None,
    ) -> None:
        """
        Args:
            initial: (P + Q,), the initial vector of every replica.
            size: P.
            update: optimizer and schedule.
            matrix: P, (S, S), doubly stochastic.
            mix: `grad` or `weight`.
            every: H, in rounds.
            groups: as for the `ParameterStore`.
            slots: likewise.
        """
        scaled = _scaled(update, len(matrix))
        self._stores = [ParameterStore(initial, size, scaled, groups, slots=slots) for _ in matrix]
        self._slots = slots or Slots(len(initial) - size)
        self._matrix = torch.tensor(matrix)  # (S, S)
        self._size, self._mix, self._every = size, mix, every
        self._rounds = 0

    def apply(self, plan: ApplyPlan, vectors: Sequence[Tensor]) -> None:
        """See `Exchange.apply`."""
        self._rounds += 1
        mixes = self._rounds % self._every == 0
        present = plan.replicas
        matrix = self._matrix[present][:, present]
        matrix = matrix / matrix.sum(dim=1, keepdim=True)
        if mixes and self._mix == "grad":
            mixed = matrix @ torch.stack([vector[: self._size] for vector in vectors])  # (S, P)
            vectors = [
                torch.cat([own, vector[self._size :]])
                for own, vector in zip(mixed, vectors, strict=True)
            ]
        for replica, vector, samples, worker in zip(
            present, vectors, plan.samples, plan.workers, strict=True
        ):
            self._stores[replica].apply([vector], [samples], [worker], plan.progress, plan.phase)
        if mixes and self._mix == "weight":
            # views of the optimizers' own memory
            models = [self._stores[group].publish()[: self._size] for group in present]
            for model, mean in zip(models, matrix @ torch.stack(models), strict=True):
                model.copy_(mean)

    def weights(self, replica: int) -> Tensor:
        """See `Exchange.weights`."""
        return self._stores[replica].publish()

    def mean(self) -> Tensor:
        """See `Exchange.mean`."""
        published, size = [store.publish() for store in self._stores], self._size
        weights = torch.stack([vector[:size] for vector in published]).mean(dim=0)
        return torch.cat([weights, self._slots.mean([vector[size:] for vector in published])])

    def forget(self, worker: str) -> None:
        """See `Exchange.forget`."""
        for store in self._stores:
            store.forget(worker)

    def statistics(self, worker: str) -> Tensor:
        """See `Exchange.statistics`: a worker pushes to the store of its replica only."""
        stores = [store for store in self._stores if store.knows(worker)]
        return (stores or self._stores)[0].statistics(worker)

    def state(self) -> State:
        """See `Exchange.state`."""
        return {"stores": [store.state() for store in self._stores], "rounds": self._rounds}

    def restore(self, saved: State) -> None:
        """See `Exchange.restore`."""
        check_fits("optimizers of replicas", len(saved["stores"]), len(self._stores))
        for store, state in zip(self._stores, saved["stores"], strict=True):
            store.restore(state)
        self._rounds = saved["rounds"]


def exchange_of(paradigm: Decoupled, update: Update, part: Part) -> Exchange:
    """Build the updates of a stage with its initial weights: one optimizer for all replicas, or
    gossip.
    """
    model = FlatModel(part, part.names)
    groups = parameter_groups(update, model.parameters)
    if paradigm.mixes_locally:
        return Gossip(
            model.initial(),
            model.size,
            update,
            paradigm.matrix,
            paradigm.mix,
            paradigm.mix_every,
            groups,
            model.layout.slots,
        )
    return OneStore(model.initial(), model.size, update, groups, slots=model.layout.slots)


def _scaled(update: Update, pushes: int) -> Update:
    """Scale the learning rate for a store that gets one push where an update has so many."""
    if update.lr_scaling == "none":
        return update
    phases = {
        name: phase.model_copy(update={"lr": phase.lr and phase.lr * pushes})
        for name, phase in update.phases.items()
    }
    return update.model_copy(update={"lr": update.lr * pushes, "phases": phases})
