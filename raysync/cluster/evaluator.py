"""The evaluator actor: training never waits for it."""

from __future__ import annotations

import torch

from raysync.cluster.devices import devices_of_actor
from raysync.cluster.names import Role
from raysync.cluster.placement import Place, here
from raysync.cluster.transport import Payload, incoming
from raysync.config import EvaluationPlan
from raysync.training.data import DataSet
from raysync.training.evaluation import evaluate
from raysync.training.flat import FlatModel
from raysync.training.models import ModelPlan


class Evaluator:
    """Evaluates published weights on the test set, in the order in which they were published."""

    def __init__(self, threads: int, role: Role) -> None:
        torch.set_num_threads(threads)
        self._role = role
        self._model: FlatModel | None = None
        self._data: DataSet | None = None
        self._plan = EvaluationPlan()

    def __repr__(self) -> str:
        return str(self._role)

    def reset(self, model: ModelPlan, plan: EvaluationPlan, data: DataSet) -> Place:
        """Begin a run."""
        [device] = devices_of_actor()
        self._model, self._data, self._plan = FlatModel(model.build().to(device)), data, plan
        return here([device])

    def evaluate(self, on_all: bool, *weights: Payload) -> tuple[float, float]:
        """Accuracy (a fraction of 1) and mean cross-entropy (nats) of weights (P + Q,), in a part a shard.

        On the whole test set, or on as much of it as the plan says.
        """
        assert self._model is not None, "evaluate before reset"
        assert self._data is not None, "evaluate before reset"
        samples = None if on_all else self._plan.samples
        return evaluate(self._model, torch.cat(incoming(*weights)), self._data, self._plan.batch_size, samples)
