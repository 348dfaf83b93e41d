"""The actors of a decoupled run on Ray: stages, the servers of their modules, and who evaluates the whole.

    stage.forward(plan, [weights], [x])         -> y                                for the next module
    stage.backward(plan, [weights], dy)         -> gradient, dx, report             the last one: x in place of dy
    server.apply(plan, gradients)               -> version
    server.publish(group)                       -> weights
    server.mean()                               -> weights, for the evaluator

What goes between them are return values, passed on as top-level references: activations and gradients from neighbour to
neighbour, nothing of it through the controller. Actors work their calls off in order, which is the order of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import ray
import torch
from torch import Tensor, nn

from raysync.cluster.clock import now_s, sleep_s
from raysync.cluster.devices import devices_of_actor
from raysync.cluster.logs import log_ready, log_to_stderr
from raysync.cluster.metrics import Exporter, UpdateSeconds
from raysync.cluster.names import Role
from raysync.cluster.placement import Place, here
from raysync.cluster.server import MissedUpdate
from raysync.cluster.transport import Payload, incoming, outgoing
from raysync.config import EvaluationPlan, Update, WorkerGroup
from raysync.decoupled.exchange import Arrived, Exchange, exchange_of
from raysync.decoupled.learner import joined
from raysync.decoupled.pipelines import Stage
from raysync.decoupled.plan import parts_of
from raysync.decoupled.stage import StageComputation
from raysync.engine.step_time import one_way_s, step_duration_s
from raysync.paradigms.decoupled import Decoupled
from raysync.record.metrics import Title
from raysync.training.data import Batches, DataSet
from raysync.training.device import Device, use_tf32
from raysync.training.evaluation import evaluate
from raysync.training.flat import FlatModel
from raysync.training.models import ModelPlan

Activation = npt.NDArray[Any]
"""(N, ...)."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What a stage is in one run."""

    stage: Stage
    slot: str
    group: WorkerGroup
    model: ModelPlan
    rule: Decoupled
    batches: Batches
    """Of its group."""
    batch_size: int
    seed: int
    share: float
    """Of the operations of a step of the whole network."""
    output_bytes: float
    """Of what it sends forward for a sample."""


class StageActor:
    """One module of one group, on its device."""

    def __init__(self, threads: int, role: Role) -> None:
        torch.set_num_threads(threads)
        self._role = role
        log_to_stderr(str(role))
        self._plan: StagePlan | None = None
        self._busy_s = 0.0

    def __repr__(self) -> str:
        return str(self._role)

    def reset(self, plan: StagePlan, data: DataSet) -> Place:
        """Begin a run."""
        [device] = devices_of_actor()
        use_tf32(False)
        part = parts_of(plan.model, plan.rule)[plan.stage[1] - 1]
        self._plan, self._data, self._device, self._busy_s = plan, data, Device(device), 0.0
        self._stage = StageComputation(part.to(device), plan.rule.weights, plan.rule.shrink)
        place = here([device])
        log_ready(f"module {plan.stage[1]} of {plan.model.name}", place.devices)
        return place

    def forward(self, batch: int, befallen: Sequence[float], *arrived: Any) -> Activation:
        """Run a batch forward.

        Args:
            batch: its number.
            befallen: what troubles make of the pass: what multiplies its duration, and seconds added to each way.
            arrived: weights (P + Q,) if they are new, and then the activation of the module before; of the first, nothing.
        """
        plan = self._ready
        inputs = self._read(arrived, expected=int(plan.stage[1] > 1))
        with self._timed(batch, befallen, 1 / 3, plan.stage[1] > 1):
            draws, clock = plan.batches, batch - 1
            x = self._up(inputs[0]) if inputs else self._device.upload(draws.draw(self._data, clock, plan.batch_size)[0])
            y = self._device.download(self._stage.forward(batch, x, draws.seed(clock)))
        return y.numpy()

    @ray.method(num_returns=3)  # type: ignore[untyped-decorator]
    def backward(self, batch: int, befallen: Sequence[float], *arrived: Any) -> tuple[Payload, Any, list[float]]:
        """Run a batch backward; the last module also forward, and then what arrives is the activation.

        Returns:
            The gradient with the buffers behind it (P + Q,), the gradient by the input, and loss and seconds of computing.
        """
        plan = self._ready
        last, alone = plan.stage[1] == plan.rule.modules, plan.rule.modules == 1
        inputs = self._read(arrived, expected=int(not alone))
        again = plan.rule.weights == "latest" and not last
        loss = 0.0
        with self._timed(batch, befallen, 1.0 if last or again else 2 / 3, not alone):
            draws, clock = plan.batches, batch - 1
            if last:
                drawn, labels = draws.draw(self._data, clock, plan.batch_size)
                x = self._up(inputs[0]) if inputs else self._device.upload(drawn)
                loss, vector, dx = self._stage.learn(batch, x, self._device.upload(labels), draws.seed(clock))
            else:
                vector, dx = self._stage.backward(batch, self._up(inputs[0]))
            gradient = outgoing(self._device.download(vector))[0]
            back = self._device.download(dx).numpy() if dx is not None and plan.stage[1] > 1 else None
        busy_s, self._busy_s = self._busy_s, 0.0
        return gradient, back, [loss, busy_s]

    @property
    def _ready(self) -> StagePlan:
        assert self._plan is not None, "called before reset"
        return self._plan

    def _read(self, arrived: Sequence[Any], expected: int) -> Sequence[Any]:
        """Take new weights, if they come along; returns the rest."""
        if len(arrived) > expected:
            self._stage.read_weights(self._device.upload(incoming(arrived[0])[0]))
        return arrived[len(arrived) - expected :]

    def _up(self, array: Activation) -> Tensor:
        return self._device.upload(torch.from_numpy(array))

    @contextmanager
    def _timed(self, batch: int, befallen: Sequence[float], part: float, travels: bool) -> Iterator[None]:
        """Sleep for what the emulated device and its link take longer than this one."""
        plan, (factor, added_s) = self._ready, befallen
        if travels:
            sleep_s(one_way_s(plan.group.link, round(plan.output_bytes * plan.batch_size), added_s))
        began_s = now_s()
        yield
        computed_s = now_s() - began_s
        emulated_s = step_duration_s(plan.group, computed_s / (plan.share * part), plan.seed, plan.slot, batch - 1, factor,
                                     plan.share * part)
        sleep_s(emulated_s - computed_s)
        self._busy_s += now_s() - began_s


class ModuleServer:
    """What the replicas of a module make of their gradients. Calls are executed in their order."""

    def __init__(self, threads: int, role: Role) -> None:
        torch.set_num_threads(threads)
        self._role = role
        self._exchange: Exchange | None = None
        self._version = 0
        self._exporter = Exporter()
        self._seconds = UpdateSeconds(self._exporter, None)

    def __repr__(self) -> str:
        return str(self._role)

    def reset(self, model: ModelPlan, rule: Decoupled, update: Update, module: int, title: Title | None) -> Place:
        """Begin a run; metrics are published under the title, if there is one."""
        self._seconds = UpdateSeconds(self._exporter, title)
        self._exchange, self._version = exchange_of(rule, update, parts_of(model, rule)[module - 1]), 0
        return here(["cpu"])

    def apply(self, fields: list[Any], *gradients: Payload) -> int:
        """One update; returns the version it makes.

        Args:
            fields: groups, workers (None for one that has left), samples, progress of the module before it, phase, and
                the version that the update makes.
            gradients: (P + Q,) each.
        """
        groups, workers, samples, progress, phase, version = fields
        if version != self._version + 1:
            raise MissedUpdate(f"the module is at version {self._version}, which update {version} does not follow")
        with self._seconds.timed():
            pushes = [Arrived(*each) for each in zip(groups, workers, incoming(*gradients), samples, strict=True)]
            self._exchange_.apply(pushes, progress, phase)
        self._version += 1
        return self._version

    def publish(self, group: int) -> Payload:
        """What the replica of that group pulls, (P + Q,)."""
        return outgoing(self._exchange_.weights(group))[0]

    def mean(self) -> Payload:
        """The mean of the replicas, (P + Q,)."""
        self._seconds.tell()
        return outgoing(self._exchange_.mean())[0]

    def forget(self, worker: str) -> None:
        """A replica has left."""
        self._exchange_.forget(worker)

    @property
    def _exchange_(self) -> Exchange:
        assert self._exchange is not None, "called before reset"
        return self._exchange


class WholeEvaluator:
    """Evaluates the modules put together."""

    def __init__(self, threads: int, role: Role) -> None:
        torch.set_num_threads(threads)
        self._role = role

    def __repr__(self) -> str:
        return str(self._role)

    def reset(self, model: ModelPlan, rule: Decoupled, plan: EvaluationPlan, data: DataSet) -> Place:
        """Begin a run."""
        [device] = devices_of_actor()
        parts = parts_of(model, rule)
        self._sizes = [FlatModel(part).size for part in parts]
        self._model = FlatModel(nn.Sequential(*(item for part in parts for item in part)).to(device))
        self._data, self._plan = data, plan
        return here([device])

    def evaluate(self, on_all: bool, *means: Payload) -> tuple[float, float]:
        """Accuracy (a fraction of 1) and mean cross-entropy (nats) of what the servers' `mean` returned."""
        samples = None if on_all else self._plan.samples
        return evaluate(self._model, joined(incoming(*means), self._sizes), self._data, self._plan.batch_size, samples)
