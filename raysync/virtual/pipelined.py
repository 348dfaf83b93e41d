"""Pipelined runs in virtual time: their actors, and the links between them.

Values from stage to stage travel over both workers' links; each stage has its own server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raysync.core.ids import WorkerId
from raysync.decoupled.pipelined_topology import PipelinedPlan, server_of
from raysync.engine.evaluations import EVALUATOR
from raysync.programs.building import server_program, stage_program, stage_seconds_of
from raysync.programs.run_spec import RunSpec
from raysync.training.models.initial_model import InitialModel
from raysync.virtual.actors import ServerCosts, StageCosts, VirtualActor
from raysync.virtual.data_parallel import evaluator_actor, state_of
from raysync.virtual.network_routes import NetworkRoutes
from raysync.virtual.transfers import AnyRoute, PhaseNetwork


class PipelinedRun:
    """One run whose network is cut into stages."""

    def __init__(
        self,
        spec: RunSpec,
        model: InitialModel,
        servers: Mapping[str, Sequence[bytes]],  # see `Checkpoint.servers`; empty at the beginning
    ) -> None:
        assert isinstance(spec.topology, PipelinedPlan), "a run without stages"
        self._spec, self._model, self._servers = spec, model, servers
        self._plan = spec.topology
        self._stages = {server_of(stage): stage for stage in self._plan.shares}

    def networks(self) -> Callable[[str], PhaseNetwork]:
        """Return the network of all phases: between stages and servers, and from stage to stage."""
        plan, experiment = self._plan, self._spec.experiment
        # each stage has one server; the experiment's actors are placed as for all of them
        cluster = experiment.cluster.model_copy(update={"server_shards": 1})
        alone = experiment.model_copy(update={"cluster": cluster})
        network, routes = experiment.network, NetworkRoutes(alone, plan.groups)
        paths: dict[str, dict[str, AnyRoute]] = {}
        for server, stage in self._stages.items():
            slots = dict(slots for each, slots in plan.slots.items() if each[1] == stage)
            size_bytes = self._spec.vector_bytes[server]
            paths |= routes.of_server(network, slots, server, size_bytes, size_bytes)
        for (group, stage), here in plan.slots.items():
            if stage < plan.paradigm.modules:
                there = plan.slots[group, stage + 1]
                size_bytes = round(plan.output_bytes[group, stage] * experiment.batch_size)
                for (source, begin), (target, end) in ((here, there), (there, here)):
                    route = routes.between(network, begin, end, size_bytes)
                    if route is not None:
                        paths.setdefault(target, {})[source] = route
        return lambda phase: PhaseNetwork(paths, network.push_s)

    def actor(self, name: str) -> VirtualActor:
        spec, model, program = self._spec, self._model, None
        if name == EVALUATOR:
            return evaluator_actor(spec, model, "cpu")
        if name in self._stages:
            return self._server_actor(name)
        slot = str(WorkerId(name).slot)
        if spec.trains:
            program = stage_program(spec, slot, model)
        return VirtualActor(slot, StageCosts(stage_seconds_of(spec, slot)).cost, program)

    def _server_actor(self, server: str) -> VirtualActor:
        spec, costs, program = self._spec, ServerCosts(vectors=1), None
        if spec.trains:
            index, state = self._stages[server] - 1, state_of(server, self._servers)
            program = server_program(spec, index, self._model, state)
        costs.enter_phase(spec.experiment.network, spec.vector_bytes[server])
        return VirtualActor(server, costs.cost, program)
