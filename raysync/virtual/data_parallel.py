"""Data-parallel runs in virtual time: their actors, and the links between these.

An iteration takes compute + upload + update + download. With m servers each has its own link and
carries 1/m of the bytes, at the same time: they are equal, so one of them is simulated. A server on
a worker's node has that worker's part of the vector there: 1/m of the worker's bytes do not travel
(with only one server nothing does: there is no latency either); the shared link is then the
worker's own (of several, the slowest).

Under a paradigm with a collective there is no server: a gradient is where it is computed, the
update begins with the exchange among the workers (`all_reduce`), and leaves the weights everywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from raysync.config import Experiment, WorkerGroup
from raysync.core.ids import WorkerId
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.engine.evaluations import EVALUATOR
from raysync.engine.faults import FaultPlan
from raysync.engine.step_time import one_way_s
from raysync.engine.topology import SERVER, DataParallel, DataParallelPlan
from raysync.training.evaluation import ModelEvaluation
from raysync.training.flat import FlatModel
from raysync.training.model_file import encoded
from raysync.training.model_server import Exchange, ModelServer, shard_of
from raysync.training.preparation import TrainingPlan
from raysync.training.state_file import check_fits
from raysync.virtual.actors import EvaluatorActor, ServerActor, WorkerActor
from raysync.virtual.all_reduce import AllReduce
from raysync.virtual.backend import Actor, VirtualBackend
from raysync.virtual.hosts import Host, Seat
from raysync.virtual.network import Path, Paths, SharedLink
from raysync.virtual.trainer import Trainer, device_of


class DataParallelRun:
    """One run whose workers have the whole model."""

    def __init__(
        self,
        training: TrainingPlan,
        paradigm: AnyParadigm,
        servers: Mapping[str, Sequence[bytes]] = MappingProxyType({}),
    ) -> None:
        """
        Args:
            training: what is trained.
            paradigm: decides who waits for whom.
            servers: see `Checkpoint.servers`; empty at the beginning of a run.
        """
        assert isinstance(paradigm, Paradigm), f"{paradigm.name} is another kind of run"
        self._training, self._paradigm, self._servers = training, paradigm, servers
        self._trains = training.experiment.timing == "with-gradients"
        self._trainer = Trainer(training) if self._trains else None

    def paths(self) -> Paths:
        """Return the links between the workers and the server; none if there is no server."""
        if self._paradigm.collective:
            return {}
        return server_paths(
            self._training.experiment, self._training.groups, self._training.vector_bytes, SERVER
        )

    def topology(self, backend: VirtualBackend, faults: FaultPlan) -> DataParallel:
        """Return the topology of the run."""
        training = self._training
        plan = DataParallelPlan(
            self._paradigm, training.workload_samples, training.has_buffers, training.vector_bytes
        )
        return plan.topology(backend, training.experiment, faults)

    def actor(self, name: str) -> Actor:
        """Return a fresh actor of that id."""
        if name == SERVER:
            return self._server()
        if name == EVALUATOR:
            return self._evaluator()
        slot = str(WorkerId(name).slot)
        return WorkerActor(
            slot, self._training.groups[slot], self._training.experiment, self._trainer
        )

    def _server(self) -> ServerActor:
        training, experiment = self._training, self._training.experiment
        vectors = 2 if experiment.update.delay_compensation is not None else 1
        server = None
        if self._trains:
            store = shard_of(FlatModel(training.build()), experiment.update)
            server = model_server(store, self._servers.get(SERVER))
        size = training.vector_bytes
        if collective := self._paradigm.collective:
            exchange = AllReduce(collective, experiment, training.groups, size)
            return server_actor(SERVER, experiment, size, vectors, server, exchange)
        return server_actor(SERVER, experiment, size, vectors, server)

    def _evaluator(self) -> EvaluatorActor:
        training, experiment = self._training, self._training.experiment
        module = training.build().to(device_of(training))
        evaluation = ModelEvaluation(training.model, module, experiment)
        return EvaluatorActor(
            lambda is_last, weights: evaluation.measure(weights[0], is_last),
            lambda weights: encoded(evaluation.model, weights[0], module, training.task),
        )


def model_server(exchange: Exchange, parts: Sequence[bytes] | None) -> ModelServer:
    """Return a server, with the state of a checkpoint if there is one.

    Args:
        exchange: fresh.
        parts: the contents of the file of each shard.

    Raises:
        ConfigError: the state is that of another model or optimizer, or of several shards.
    """
    server = ModelServer(exchange)
    if parts is not None:
        check_fits("shards of a server", len(parts), 1)
        server.restore(parts[0])
    return server


def server_actor(
    site: str,
    experiment: Experiment,
    vector_bytes: int,
    vectors: int,
    server: ModelServer | None,
    exchange: AllReduce | None = None,
) -> ServerActor:
    """Return a server with the times of the experiment's network; with an `exchange`, every worker
    in place of one reads the whole sum.
    """
    network = experiment.network
    servers = experiment.cluster.server_shards if exchange is None else 1
    reading_s = vector_bytes / servers / (network.update_bytes_per_s or float("inf"))
    return ServerActor(site, network.update_s, reading_s, vectors, server, exchange)


def server_paths(
    experiment: Experiment, groups: Mapping[str, WorkerGroup], vector_bytes: int, server: str
) -> dict[str, dict[str, Path]]:
    """Return the links between workers and their server, for a vector of that size: target ->
    source -> path.

    Args:
        experiment: gives the `network`, and the number and places of servers.
        groups: worker slot -> group.
        vector_bytes: the size of a gradient, and of the weights.
        server: the server's site.
    """
    network, servers = experiment.network, experiment.cluster.server_shards
    with_workers = experiment.cluster.server_placement == "with-workers"
    slots = list(groups)
    hosts = (
        Counter(slots[shard % len(slots)] for shard in range(servers))
        if with_workers
        else Counter[str]()
    )
    links = {group.name: (network.link, group.link) for group in groups.values()}
    at_servers = [link.bandwidth_bytes_per_s for host in hosts for link in links[groups[host].name]]
    limits = [
        rate for rate in (network.server_bandwidth_bytes_per_s, *at_servers) if rate is not None
    ]
    s_per_byte = 1 / min(limits) if limits else 0.0
    up, down = SharedLink(s_per_byte), SharedLink(s_per_byte)
    has_latency = any(fault.kind in ("latency", "drift") for fault in experiment.faults)
    paths: dict[str, dict[str, Path]] = {server: {}}
    for slot, group in groups.items():
        away = 1 - hosts[slot] / servers
        latency_s = sum(link.latency_s for link in links[group.name])
        transfer_s = max(
            one_way_s(link, vector_bytes) - link.latency_s for link in links[group.name]
        )
        ends = latency_s, away * transfer_s
        if not (any(ends) or s_per_byte or has_latency):
            continue  # nothing takes time there
        paths[server][slot] = Path(*ends, up, away * vector_bytes / servers)
        paths[slot] = {server: Path(*ends, down, away * vector_bytes / servers)}
    return paths


def seats_of(experiment: Experiment, timeline: VirtualBackend) -> Mapping[str, Seat]:
    """Return slot -> its place, of the workers that share the cores of a host."""
    hosts: dict[str, Host] = {}
    seats = {}
    for slot, group in experiment.slots().items():
        if (shared := group.host) is not None:
            host = hosts.get(shared.name) or hosts.setdefault(
                shared.name, Host(shared.cores, timeline)
            )
            seats[slot] = host, group.cores
    return seats
