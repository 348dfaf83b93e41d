"""Data-parallel runs in virtual time: iterations of compute + upload + update + download.

Under a paradigm with a collective there is no server: gradients stay where they are computed, the
update begins with the all-reduce, and every worker then has the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import MappingProxyType

from raysync.config import Network
from raysync.core.ids import WorkerId
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.emulation.fault_plan import FaultPlan
from raysync.emulation.step_time import StepTime
from raysync.engine.evaluations import EVALUATOR
from raysync.engine.messages import LoadServerStateCall
from raysync.engine.topology import SERVER, DataParallel, DataParallelPlan
from raysync.programs.evaluator import EvaluatorProgram
from raysync.programs.server import ServerProgram
from raysync.training.files.state_file import check_fits
from raysync.training.preparation import TrainingPlan
from raysync.training.server.model_server import Store
from raysync.training.server.parameter_store import shard_of
from raysync.training.worker.flat import FlatModel
from raysync.virtual.actors import (
    EvaluatorCosts,
    ServerCosts,
    ServerTimes,
    VirtualActor,
    WorkerCosts,
)
from raysync.virtual.all_reduce import AllReduce
from raysync.virtual.network_routes import NetworkRoutes
from raysync.virtual.processes import Actor
from raysync.virtual.shared_computation import SharedComputation, device_of
from raysync.virtual.transfers import PhaseNetwork
from raysync.virtual.virtual_backend import VirtualBackend


class DataParallelRun:
    """One run whose workers have the whole model."""

    def __init__(
        self,
        training: TrainingPlan,
        paradigm: AnyParadigm,
        # see `Checkpoint.servers`; empty at the beginning of a run
        servers: Mapping[str, Sequence[bytes]] = MappingProxyType({}),
    ) -> None:
        assert isinstance(paradigm, Paradigm), f"{paradigm.name} is another kind of run"
        self._training, self._paradigm, self._servers = training, paradigm, servers
        self._trains = training.experiment.timing == "with-gradients"
        self._shared = SharedComputation(training) if self._trains else None
        self._times = ServerTimes()

    def networks(self) -> Callable[[str], PhaseNetwork]:
        """Return a function that sets the update times of a phase, and returns its network."""
        training, settings = self._training, self._training.experiment.network
        has_server = not self._paradigm.collective
        routes = NetworkRoutes(training.experiment, training.groups)
        slots = {slot: slot for slot in training.groups} if has_server else {}
        servers = training.experiment.cluster.server_shards if has_server else 1

        def network_of(phase: str) -> PhaseNetwork:
            network = settings.in_phase(phase)
            push_bytes, pull_bytes = training.push_bytes, training.vector_bytes
            set_times(self._times, network, push_bytes / servers)
            paths = routes.of_server(network, slots, SERVER, push_bytes, pull_bytes)
            push_s = network.push_s if has_server else 0.0
            return PhaseNetwork(paths, push_s, changes=bool(settings.phases))

        return network_of

    def topology(self, backend: VirtualBackend, faults: FaultPlan) -> DataParallel:
        training = self._training
        plan = DataParallelPlan(
            paradigm=self._paradigm,
            workload_samples=training.workload_samples,
            groups=training.groups,
            has_buffers=training.has_buffers,
            vector_bytes=training.vector_bytes,
        )
        return plan.topology(backend, training.experiment, faults)

    def actor(self, name: str) -> Actor:
        if name == SERVER:
            return self._server_actor()
        if name == EVALUATOR:
            return evaluator_actor(self._training, self._paradigm, device_of(self._training))
        slot, experiment = str(WorkerId(name).slot), self._training.experiment
        group = self._training.groups[slot]
        step_time = StepTime(
            group, experiment.seed, slot, group.batch_size or experiment.batch_size
        )
        worker = None if self._shared is None else self._shared.worker(slot)
        return VirtualActor(slot, WorkerCosts(step_time), worker)

    def _server_actor(self) -> VirtualActor:
        training, experiment = self._training, self._training.experiment
        vectors = 2 if experiment.update.delay_compensation is not None else 1
        server = None
        if self._trains:
            module = training.build().to(device_of(training))
            store = shard_of(
                FlatModel(module, found=training.model.found), experiment.update
            )  # of decoded gradients
            server = server_program(store, self._servers.get(SERVER))
        exchange = None
        if collective := self._paradigm.collective:
            exchange = AllReduce(collective, experiment, training.groups, training.vector_bytes)
        return VirtualActor(SERVER, ServerCosts(self._times, vectors, exchange), server)


def evaluator_actor(training: TrainingPlan, paradigm: AnyParadigm, device: str) -> VirtualActor:
    program = EvaluatorProgram(training.model, training.experiment, paradigm, device)
    return VirtualActor(EVALUATOR, EvaluatorCosts(), program)


def server_program(store: Store, parts: Sequence[bytes] | None) -> ServerProgram:
    """Create a server, with the state of a checkpoint if there is one.

    Args:
        store: fresh.
        parts: the contents of the file of each shard.

    Raises:
        ConfigError: the state is of another model or optimizer, or of several shards.
    """
    server = ServerProgram(store)
    if parts is not None:
        check_fits("shards of a server", len(parts), 1)
        server.handle(LoadServerStateCall(), parts)
    return server


def set_times(times: ServerTimes, network: Network, read_bytes: float) -> None:
    """Set the update times of a server in a phase's network."""
    times.update_s = network.update_s
    times.reading_s = read_bytes / (network.update_bytes_per_s or inf)
