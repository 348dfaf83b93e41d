"""The evaluator actor: training never waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from raysync.cluster.actor_errors import signed
from raysync.cluster.actor_spec import Role
from raysync.cluster.devices import Place, devices_of_actor, here
from raysync.cluster.transport import Payload, incoming
from raysync.config import EvaluationPlan
from raysync.training.data import DataSet
from raysync.training.evaluation import evaluate
from raysync.training.flat import FlatModel
from raysync.training.models import ModelPlan


class Assembly(Protocol):
    """How the evaluated model is put together from what the servers publish."""

    def model(self) -> nn.Module:
        """Return the whole model."""

    def vector(self, weights: Sequence[Tensor]) -> Tensor:
        """Return its weights (P + Q,) from the vectors of all servers, or their shards."""


@dataclass(frozen=True, slots=True)
class WholeModel:
    """The model of one server, whose shards have a part of the vector each."""

    plan: ModelPlan

    def model(self) -> nn.Module:
        """See `Assembly.model`."""
        return self.plan.build()

    def vector(self, weights: Sequence[Tensor]) -> Tensor:
        """See `Assembly.vector`."""
        return torch.cat(list(weights))


class Evaluator:
    """It evaluates published weights on the test set, in the order in which they were published."""

    def __init__(self, threads: int, role: Role) -> None:
        torch.set_num_threads(threads)
        self._role = role
        self._model: FlatModel | None = None

    def __repr__(self) -> str:
        return str(self._role)

    def reset(self, assembly: Assembly, plan: EvaluationPlan, data: DataSet) -> Place:
        """Begin a run."""
        [device] = devices_of_actor()
        self._model, self._assembly = FlatModel(assembly.model().to(device)), assembly
        self._data, self._plan = data, plan
        return here([device])

    @signed()
    def evaluate(self, fields: list[bool], *weights: Payload) -> dict[str, float]:
        """Return the metrics of published weights: name -> value.

        Args:
            fields: whether to use the whole test set, or as much of it as the plan says.
            weights: what the servers published, in a part a shard.
        """
        assert self._model is not None, "evaluate before reset"
        samples = None if fields[0] else self._plan.samples
        return evaluate(
            self._model,
            self._assembly.vector(incoming(*weights)),
            self._data,
            self._plan.batch_size,
            samples,
        )
