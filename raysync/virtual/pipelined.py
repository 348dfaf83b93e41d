"""Pipelined runs in virtual time: their actors, and the links between them.

Values from stage to stage travel over both workers' links; each stage has its own server.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from raysync.core.ids import WorkerId
from raysync.decoupled.cut import Part
from raysync.decoupled.pipelined_topology import Pipelined, server_of
from raysync.decoupled.pipelines import StageId
from raysync.decoupled.plan import DecoupledPlan
from raysync.decoupled.stage_computation import StageComputation
from raysync.decoupled.stage_seconds import StageSeconds
from raysync.emulation.fault_plan import FaultPlan
from raysync.emulation.step_time import StepTime
from raysync.engine.evaluations import EVALUATOR
from raysync.programs.stage import StageProgram
from raysync.virtual.actors import ServerCosts, ServerTimes, StageCosts, VirtualActor
from raysync.virtual.data_parallel import evaluator_actor, server_program, set_times
from raysync.virtual.network_routes import NetworkRoutes
from raysync.virtual.processes import Actor
from raysync.virtual.transfers import AnyRoute, PhaseNetwork
from raysync.virtual.virtual_backend import VirtualBackend


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
            return evaluator_actor(self._plan.training, self._plan.paradigm, "cpu")
        for stage in self._plan.shares:
            if name == server_of(stage):
                return self._server_actor(stage)
        return self._stage_actor(self._stages[WorkerId(name).slot])

    def _server_actor(self, stage: int) -> VirtualActor:
        plan, site, server = self._plan, server_of(stage), None
        if self._trains:
            server = server_program(plan.store(self._copied_part(stage)), self._servers.get(site))
        times = ServerTimes()
        set_times(times, plan.training.experiment.network, plan.vector_bytes[stage])
        return VirtualActor(site, ServerCosts(times, 1), server)

    def _stage_actor(self, stage_id: StageId) -> VirtualActor:
        plan, (group, stage), program = self._plan, stage_id, None
        experiment, paradigm = plan.training.experiment, plan.paradigm
        described, size = plan.group(stage_id), experiment.batch_size
        step_time = StepTime(described, experiment.seed, plan.slots[stage_id], size)
        seconds = StageSeconds(step_time, plan.shares[stage], size, paradigm, stage)
        if self._trains:
            program = StageProgram(
                computation=StageComputation(
                    self._copied_part(stage), paradigm.weights, paradigm.shrink, described.precision
                ),
                stage=stage,
                stages=paradigm.modules,
                task=plan.training.task,
                reader=plan.reader(group),
                batch_size=size,
            )
        return VirtualActor(plan.name(stage_id), StageCosts(seconds), program)

    def _copied_part(self, stage: int) -> Part:
        return copy.deepcopy(self._parts[stage - 1])
