"""The updates of replicas with an optimizer each, which average gradients or weights.

Shapes: S groups, P trainable parameters of the stage, Q floats of its buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from raysync.config import Update
from raysync.decoupled.cut import Part
from raysync.paradigms.decoupled import Decoupled
from raysync.training.formats.state_file import State, check_fits
from raysync.training.server.apply_plan import MEAN, ApplyPlan
from raysync.training.server.model_server import Store
from raysync.training.server.parameter_store import shard_of
from raysync.training.vectors.flat import FlatModel


class Gossip:
    """Every H-th round the matrix P mixes the gradients or weights of the replicas.

        grad     g_s <- sum_r P[s, r] g_r, before the optimizers' steps
        weight   x_s <- sum_r P[s, r] x_r, after them

    Source: a reading of Pham and Ahn (2025), whose communication is not public. A round is an
    update under BSP. Momentum is per replica and not mixed.
    """

    def __init__(
        self,
        model: FlatModel,
        update: Update,
        matrix: Sequence[Sequence[float]],
        mix: str,
        every: int,
    ) -> None:
        """
        Args:
            matrix: P, (S, S), doubly stochastic.
            mix: `grad` or `weight`.
            every: H, in rounds.
        """
        scaled = _scaled(update, len(matrix))
        self._stores = [shard_of(model, scaled) for _ in matrix]
        self._size, self._buffer_slots = model.size, model.layout.slots
        self._matrix = torch.tensor(matrix)  # (S, S)
        self._mix, self._every = mix, every
        self._rounds = 0

    def apply(self, plan: ApplyPlan, vectors: Sequence[Tensor]) -> None:
        self._rounds += 1
        mixes = self._rounds % self._every == 0
        present = plan.replicas
        matrix = self._matrix[present][:, present]
        matrix = matrix / matrix.sum(dim=1, keepdim=True)  # over the replicas that are present
        if mixes and self._mix == "grad":
            mixed = matrix @ torch.stack([vector[: self._size] for vector in vectors])  # (S, P)
            vectors = [
                torch.cat([gradient, vector[self._size :]])
                for gradient, vector in zip(mixed, vectors, strict=True)
            ]
        for index, (replica, vector) in enumerate(zip(present, vectors, strict=True)):
            replica_plan = replace(
                plan,
                workers=[plan.workers[index]],
                samples=[plan.samples[index]],
                staleness=[plan.staleness[index]],
            )
            self._stores[replica].apply(replica_plan, [vector])
        if mixes and self._mix == "weight":
            # `publish` returns views of the optimizers' memory, so `copy_` changes their weights
            models = [self._stores[group].publish()[: self._size] for group in present]
            for model, mean in zip(models, matrix @ torch.stack(models), strict=True):
                model.copy_(mean)

    def publish(self, replica: int) -> Tensor:
        if replica != MEAN:
            return self._stores[replica].publish()
        published, size = [store.publish() for store in self._stores], self._size
        weights = torch.stack([vector[:size] for vector in published]).mean(dim=0)
        return torch.cat(
            [weights, self._buffer_slots.mean([vector[size:] for vector in published])]
        )

    def forget(self, worker: str) -> None:
        for store in self._stores:
            store.forget(worker)

    def statistics(self, worker: str) -> Tensor:
        # a worker pushes to the store of its replica only
        stores = [store for store in self._stores if store.knows(worker)]
        return (stores or self._stores)[0].statistics(worker)

    def state(self) -> State:
        return {"stores": [store.state() for store in self._stores], "rounds": self._rounds}

    def restore(self, saved: State) -> None:
        states = saved.get("stores", [saved])  # a store without replicas saves its state alone
        check_fits("optimizers of replicas", len(states), len(self._stores))
        for store, state in zip(self._stores, states, strict=True):
            store.restore(state)
        self._rounds = saved["rounds"]


def store_of(paradigm: Decoupled, update: Update, part: Part) -> Store:
    model = FlatModel(part, part.names)
    if paradigm.mixes_locally:
        return Gossip(
            model=model,
            update=update,
            matrix=paradigm.matrix,
            mix=paradigm.mix,
            every=paradigm.mix_every,
        )
    return shard_of(model, update)


def _scaled(update: Update, pushes: int) -> Update:
    # Each store gets one of an update's pushes. With its rate scaled to all of them, `grad` under
    # full averaging equals one server with one optimizer.
    if update.lr_scaling != "linear":
        return update
    phases = {
        name: phase.model_copy(update={"lr": phase.lr and phase.lr * pushes})
        for name, phase in update.phases.items()
    }
    return update.model_copy(update={"lr": update.lr * pushes, "phases": phases})
