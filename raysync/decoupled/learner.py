"""The training of a decoupled run in one process: every stage with its own module, every module with its server."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from raysync.core.decisions import Push
from raysync.decoupled.exchange import Arrived
from raysync.decoupled.pipelines import Pass, Stage
from raysync.decoupled.plan import DecoupledPlan
from raysync.decoupled.stage import StageComputation
from raysync.errors import RunFailed
from raysync.training.evaluation import evaluate
from raysync.training.flat import FlatModel


class DecoupledLearner:
    """What stages compute and servers keep, without any time."""

    def __init__(self, plan: DecoupledPlan) -> None:
        self._plan = plan
        rule, parts = plan.rule, plan.parts()
        self._exchanges = {module: plan.exchange(copy.deepcopy(part)) for module, part in enumerate(parts, start=1)}
        self._whole = FlatModel(nn.Sequential(*(item for part in parts for item in part)))
        self._stages = {stage: StageComputation(copy.deepcopy(parts[stage[1] - 1]), rule.weights, rule.shrink)
                        for stage in plan.slots}
        self._draws = {group: plan.draws(group) for group in range(rule.groups)}
        self._mail: dict[Pass, Tensor] = {}
        """Pass -> its input, from the neighbour."""
        self._gradients: dict[Push, Tensor] = {}

    def pull(self, stage: Stage) -> Tensor:
        """What a stage that is released now will compute on."""
        return self._exchanges[stage[1]].weights(stage[0])

    def read(self, stage: Stage, weights: Tensor) -> None:
        """They have arrived."""
        self._stages[stage].read_weights(weights)

    def run(self, one: Pass, push: Push | None) -> float | None:
        """Run a pass; a backward one leaves the gradient of that push. Returns the loss, if it is the last module's.

        Raises:
            RunFailed: the user's model broke.
        """
        try:
            return self._run(one, push)
        except Exception as error:
            raise RunFailed(f"stage {self._plan.name(one.stage)}: {type(error).__name__}: {error}") from error

    def apply(
        self, module: int, pushes: Sequence[tuple[int, Push]], members: Collection[str], progress: float, phase: str,
    ) -> None:
        """One update of a module.

        Args:
            module: whose.
            pushes: group and name of each.
            members: who has not left.
            progress: of the module before it.
            phase: of its paradigm.
        """
        size = self._plan.task.experiment.batch_size
        arrived = [Arrived(group, push[0] if push[0] in members else None, self._gradients.pop(push), size)
                   for group, push in pushes]
        self._exchanges[module].apply(arrived, progress, phase)

    def drop(self, push: Push) -> None:
        """Forget a gradient."""
        self._gradients.pop(push, None)

    def forget(self, module: int, worker: str) -> None:
        """A replica has left."""
        self._exchanges[module].forget(worker)

    def evaluate(self, on_all: bool) -> tuple[float, float]:
        """Accuracy (a fraction of 1) and mean cross-entropy (nats) of the whole network as it now is.

        Args:
            on_all: the test set, not only as much of it as the experiment's plan says.
        """
        task, evaluation = self._plan.task, self._plan.task.experiment.evaluation
        sizes = [self._stages[0, module].size for module in self._exchanges]
        vector = joined([exchange.mean() for exchange in self._exchanges.values()], sizes)
        return evaluate(self._whole, vector, task.data, evaluation.batch_size, None if on_all else evaluation.samples)

    def _run(self, one: Pass, push: Push | None) -> float | None:
        (group, module), stage = one.stage, self._stages[one.stage]
        draws, clock = self._draws[group], one.batch - 1
        size, data = self._plan.task.experiment.batch_size, self._plan.task.data
        last, seed = module == self._plan.rule.modules, draws.seed(clock)
        loss = None
        if one.direction == "forward":
            x = draws.draw(data, clock, size)[0] if module == 1 else self._mail.pop(one)
            if last:
                self._mail[Pass(one.stage, "backward", one.batch)] = x
            else:
                self._mail[Pass((group, module + 1), "forward", one.batch)] = stage.forward(one.batch, x, seed)
            return None
        if last:
            x, labels = self._mail.pop(one), draws.draw(data, clock, size)[1]
            loss, outgoing, dx = stage.learn(one.batch, x, labels, seed)
        else:
            outgoing, dx = stage.backward(one.batch, self._mail.pop(one))
        assert push is not None, "a gradient without a name"
        self._gradients[push] = outgoing.clone()
        if module > 1:
            assert dx is not None, "an activation that is no float"
            self._mail[Pass((group, module - 1), "backward", one.batch)] = dx
        return loss


def joined(vectors: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The vectors of the modules, (P + Q,) each, as the one of the whole network: all parameters, then all buffers.

    Args:
        vectors: of each module.
        sizes: P of each.
    """
    return torch.cat([vector[:size] for vector, size in zip(vectors, sizes, strict=True)]
                     + [vector[size:] for vector, size in zip(vectors, sizes, strict=True)])
