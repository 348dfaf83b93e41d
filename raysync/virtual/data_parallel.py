"""Data-parallel runs in virtual time: iterations of compute + upload + update + download.

Under a paradigm with a collective there is no server: gradients stay where they are computed, the
update begins with the all-reduce, and every worker then has the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from raysync.core.ids import WorkerId
from raysync.engine.evaluations import EVALUATOR
from raysync.engine.topology import SERVER, DataParallelPlan
from raysync.programs.building import server_program, step_time_of
from raysync.programs.evaluator import EvaluatorProgram
from raysync.programs.run_spec import RunSpec
from raysync.training.formats.state_file import check_fits
from raysync.training.models.initial_model import InitialModel
from raysync.virtual.actors import ServerCosts, VirtualActor, WorkerCosts, no_cost
from raysync.virtual.all_reduce import AllReduce
from raysync.virtual.network_routes import NetworkRoutes
from raysync.virtual.shared_computation import SharedComputation, device_of
from raysync.virtual.transfers import PhaseNetwork


class DataParallelRun:
    """One run whose workers have the whole model."""

    def __init__(
        self,
        spec: RunSpec,
        model: InitialModel,
        servers: Mapping[str, Sequence[bytes]],  # see `Checkpoint.servers`; empty at the beginning
    ) -> None:
        assert isinstance(spec.topology, DataParallelPlan), "a run in stages"
        self._spec, self._model, self._servers = spec, model, servers
        plan, experiment = spec.topology, spec.experiment
        exchange, self._plan = None, plan
        if plan.paradigm.collective:
            size = spec.vector_bytes[SERVER]
            exchange = AllReduce(plan.paradigm.collective, experiment, plan.groups, size)
        vectors = 2 if experiment.update.delay_compensation is not None else 1
        self._server_costs = ServerCosts(vectors, exchange)
        self._shared = SharedComputation(spec, model) if spec.trains else None

    def networks(self) -> Callable[[str], PhaseNetwork]:
        """Return a function that sets the update times of a phase, and returns its network."""
        spec, groups, experiment = self._spec, self._plan.groups, self._spec.experiment
        settings, has_server = experiment.network, not self._plan.paradigm.collective
        routes = NetworkRoutes(experiment, groups)
        slots = {slot: slot for slot in groups} if has_server else {}
        servers = experiment.cluster.server_shards if has_server else 1

        def network_of(phase: str) -> PhaseNetwork:
            network = settings.in_phase(phase)
            push_bytes, pull_bytes = spec.push_bytes[SERVER], spec.vector_bytes[SERVER]
            self._server_costs.enter_phase(network, push_bytes / servers)
            paths = routes.of_server(network, slots, SERVER, push_bytes, pull_bytes)
            push_s = network.push_s if has_server else 0.0
            return PhaseNetwork(paths, push_s, changes=bool(settings.phases))

        return network_of

    def actor(self, name: str) -> VirtualActor:
        spec, shared = self._spec, self._shared
        if name == SERVER:
            return self._server_actor()
        if name == EVALUATOR:
            return evaluator_actor(spec, self._model, device_of(self._plan.groups))
        slot = str(WorkerId(name).slot)
        worker = None if shared is None else shared.worker(slot)
        return VirtualActor(slot, WorkerCosts(step_time_of(spec, slot)).cost, worker)

    def _server_actor(self) -> VirtualActor:
        spec, program = self._spec, None
        if spec.trains:
            state, device = state_of(SERVER, self._servers), device_of(self._plan.groups)
            program = server_program(spec, 0, self._model, state, device=device, is_whole=True)
        return VirtualActor(SERVER, self._server_costs.cost, program)


def evaluator_actor(spec: RunSpec, model: InitialModel, device: str) -> VirtualActor:
    return VirtualActor(EVALUATOR, no_cost, EvaluatorProgram(spec, model, device))


def state_of(server: str, servers: Mapping[str, Sequence[bytes]]) -> Sequence[bytes]:
    """Return the file of a server in a checkpoint, if there is one.

    Raises:
        ConfigError: it is of several shards.
    """
    parts = servers.get(server, ())
    check_fits("shards of a server", len(parts) or 1, 1)
    return parts
