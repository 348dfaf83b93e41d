"""Pipelined runs in virtual time: their actors, and the links between them.

Values from stage to stage travel over both workers' links; each stage has its own server.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from raysync.core.ids import WorkerId
from raysync.decoupled.cut import Part
from raysync.decoupled.pipelined_topology import Pipelined, server_of
from raysync.decoupled.pipelines import StageId
from raysync.decoupled.plan import DecoupledPlan
from raysync.decoupled.published_model import PublishedModel
from raysync.decoupled.stage_computation import StageComputation, StageWork
from raysync.emulation.fault_plan import FaultPlan
from raysync.emulation.step_time import StepTime
from raysync.engine.evaluations import EVALUATOR
from raysync.engine.messages import BackwardCall, ForwardCall, Message, StepReport
from raysync.step_fault import NO_FAULT
from raysync.training.files.state_file import State
from raysync.virtual.actors import Computed, EvaluatorActor, ServerActor, ServerTimes
from raysync.virtual.data_parallel import model_server, set_times
from raysync.virtual.network_routes import NetworkRoutes
from raysync.virtual.transfers import AnyRoute, PhaseNetwork
from raysync.virtual.virtual_backend import Actor, Cost, VirtualBackend

FORWARD = 1 / 3  # the forward pass's share of a step's operations; a backward pass has 2 / 3


class VirtualStage:
    """One stage of one group, on the device that its worker's group describes.

    A pass takes the stage's share of the operations of a step, a third of it forward and two thirds
    backward (`weights: latest` runs forward again first).
    """

    def __init__(
        self,
        plan: DecoupledPlan,
        stage_id: StageId,
        computation: StageComputation | None,  # None: nothing is trained
    ) -> None:
        self.site = plan.name(stage_id)
        self._plan, (self._group, self._stage) = plan, stage_id
        experiment = plan.training.experiment
        self._batch_size = experiment.batch_size
        self._step_time = StepTime(
            plan.group(stage_id), experiment.seed, plan.slots[stage_id], self._batch_size
        )
        self._work = None
        if computation is not None:
            self._work = StageWork(
                computation=computation,
                stage=self._stage,
                stages=plan.paradigm.modules,
                task=plan.training.task,
                reader=plan.reader(self._group),
                batch_size=self._batch_size,
            )
        self._busy_s = 0.0  # seconds of computing since its last push

    def cost(self, message: Message, inputs: Sequence[Any]) -> Cost:
        assert isinstance(message, ForwardCall | BackwardCall), f"no call of a stage: {message}"
        forward_s, backward_s = (
            self._seconds(message, share) for share in self._pass_shares(message)
        )
        self._busy_s += forward_s
        self._busy_s += backward_s
        answer = None
        if isinstance(message, BackwardCall):
            answer, self._busy_s = StepReport(None, self._busy_s), 0.0
        return forward_s, backward_s, NO_FAULT, message.fault, answer

    def compute(self, message: Message, inputs: list[Any], answer: Any) -> Computed:
        assert self._work is not None, "nothing to train with"
        assert isinstance(message, ForwardCall | BackwardCall), f"no call of a stage: {message}"
        if isinstance(message, ForwardCall):
            return (self._work.forward(message.batch, inputs),), None
        loss, gradient, dx = self._work.backward(message.batch, inputs)
        return (gradient.clone(), dx), StepReport(loss, answer.busy_s, self._work.not_finite)

    def state(self) -> State:
        assert self._work is not None, "nothing to train with"
        return self._work.state()

    def load_state(self, state: State) -> None:
        assert self._work is not None, "nothing to train with"
        self._work.load_state(state)

    def _pass_shares(self, message: Message) -> tuple[float, float]:
        """Return the forward and the backward share of the stage's operations in a pass."""
        if isinstance(message, ForwardCall):
            return FORWARD, 0.0
        if self._stage == self._plan.paradigm.modules:
            return FORWARD, 1 - FORWARD
        return 0.0, 1 - FORWARD + (FORWARD if self._plan.paradigm.weights == "latest" else 0.0)

    def _seconds(self, message: ForwardCall | BackwardCall, share: float) -> float:
        return (self._plan.shares[self._stage] * share) * self._step_time.seconds(
            message.batch - 1, self._batch_size, message.fault.factor
        )


class PipelinedRun:
    """One run whose network is cut into stages."""

    def __init__(
        self,
        plan: DecoupledPlan,
        # see `Checkpoint.servers`; empty at the beginning of a run
        servers: Mapping[str, Sequence[bytes]] = MappingProxyType({}),
    ) -> None:
        self._plan, self._servers = plan, servers
        self._trains = plan.training.experiment.timing == "with-gradients"
        self._parts = plan.parts() if self._trains else []
        self._stages = {plan.name(stage_id): stage_id for stage_id in plan.slots}

    def networks(self) -> Callable[[str], PhaseNetwork]:
        """Return the network of all phases: between stages and servers, and from stage to stage."""
        plan, experiment = self._plan, self._plan.training.experiment
        network, routes = experiment.network, NetworkRoutes(experiment, plan.training.groups)
        paths: dict[str, dict[str, AnyRoute]] = {}
        for stage in plan.shares:
            slots = {plan.name(each): slot for each, slot in plan.slots.items() if each[1] == stage}
            size_bytes = plan.vector_bytes[stage]
            paths |= routes.of_server(network, slots, server_of(stage), size_bytes, size_bytes)
        for group, stage in plan.slots:
            if stage < plan.paradigm.modules:
                neighbours = (group, stage), (group, stage + 1)
                size_bytes = round(plan.output_bytes[group, stage] * experiment.batch_size)
                for source, target in (neighbours, neighbours[::-1]):
                    route = routes.between(
                        network, plan.slots[source], plan.slots[target], size_bytes
                    )
                    if route is not None:
                        paths.setdefault(plan.name(target), {})[plan.name(source)] = route
        return lambda phase: PhaseNetwork(paths, network.push_s)

    def topology(self, backend: VirtualBackend, faults: FaultPlan) -> Pipelined:
        return self._plan.topology().topology(backend, self._plan.training.experiment, faults)

    def actor(self, name: str) -> Actor:
        if name == EVALUATOR:
            training, paradigm = self._plan.training, self._plan.paradigm
            return EvaluatorActor(
                PublishedModel(training.model, training.experiment, paradigm, "cpu")
            )
        for stage in self._plan.shares:
            if name == server_of(stage):
                return self._server_actor(stage)
        return self._stage_actor(self._stages[WorkerId(name).slot])

    def _server_actor(self, stage: int) -> ServerActor:
        plan, site, server = self._plan, server_of(stage), None
        if self._trains:
            server = model_server(plan.store(self._copied_part(stage)), self._servers.get(site))
        times = ServerTimes()
        set_times(times, plan.training.experiment.network, plan.vector_bytes[stage])
        return ServerActor(site, times, 1, server)

    def _stage_actor(self, stage_id: StageId) -> VirtualStage:
        plan, computation = self._plan, None
        if self._trains:
            computation = StageComputation(
                self._copied_part(stage_id[1]),
                plan.paradigm.weights,
                plan.paradigm.shrink,
                plan.group(stage_id).precision,
            )
        return VirtualStage(plan, stage_id, computation)

    def _copied_part(self, stage: int) -> Part:
        return copy.deepcopy(self._parts[stage - 1])
