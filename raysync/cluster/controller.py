"""The controller actor: the driver of a run on Ray, whose process owns every gradient and all
weights.

What happened streams to the session, which alone writes the record, so this actor keeps no history;
it tells the session at least every second that it is alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.util.placement_group import PlacementGroup

from raysync.cluster.actor_spec import ActorSpecs, Role
from raysync.cluster.backend import RayBackend
from raysync.cluster.monitoring import Exporter, log_begin, log_events, log_to_stderr, run_metrics
from raysync.cluster.node_watch import NodeWatch, Watch, WorkerNodes
from raysync.cluster.shards import Shards, actor_id
from raysync.cluster.shared_vectors import KeptSlots, SharedPlan, SharedVectors
from raysync.config import Crash, Experiment
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Line
from raysync.core.metrics import PrimaryMetric
from raysync.core.paradigm import AnyParadigm
from raysync.engine.backend import Backend
from raysync.engine.driver import Driver
from raysync.engine.faults import FaultPlan
from raysync.engine.kept_models import SavedModel
from raysync.engine.topology import Topology
from raysync.record.metrics_registry import RunLabels

BESIDE = "beside"
"""Ray's concurrency group of the calls that a controller takes while a run is under way."""


class TopologyPlan(Protocol):
    """What a topology is made of, without torch."""

    @property
    def paradigm(self) -> AnyParadigm:
        """The paradigm of the run."""

    @property
    def workload_samples(self) -> int:
        """The size of the whole work."""

    def topology(self, backend: Backend, experiment: Experiment, faults: FaultPlan) -> Topology:
        """Return the topology of a run."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """One run, as the controller needs it."""

    experiment: Experiment
    topology: TopologyPlan
    servers: Mapping[str, Sequence[int]]
    """Id of a server -> which of the server actors are its shards."""
    first_server: int
    """The number in the name of the first server actor."""
    workers: Sequence[str]
    """The ids of the workers, in the order of the handles."""
    respawns: Any
    """A reference to a mapping, slot of a worker or kind of a server -> the `ActorSpec` that starts
    it anew."""
    group: PlacementGroup
    """Where all actors sit."""
    bundles: Mapping[str, int]
    """Slot -> the index of the bundle that its workers sit in."""
    server_bundles: Mapping[str, Sequence[int]]
    """Id of a server -> the indices of the bundles that its shards sit in."""
    names: Mapping[str, str]
    """Ray's id of an actor -> its id here, of workers and servers."""
    primary: PrimaryMetric
    """The metric that the task's models are judged by."""
    vector_bytes: Mapping[str, int]
    """Id of a server -> the bytes of its weights."""
    push_bytes: Mapping[str, int]
    """Id of a server -> the bytes of a gradient for it."""
    ways_s: Mapping[str, float]
    """Slot -> the seconds that a gradient takes over its worker's emulated link."""
    sites: Mapping[str, str]
    """Id of a worker -> Ray's id of its node."""
    server_sites: Sequence[str]
    """Ray's id of the node of each server actor."""
    shared: SharedPlan | None = None
    """What travels in shared memory; None: nothing does."""
    evaluator_setup: tuple[Any, ...] = ()
    """References to the arguments of the evaluator's `reset`."""
    checkpoint: Checkpoint | None = None
    """What the run goes on from, without the files of the servers."""
    labels: RunLabels | None = None
    """What names the run in the log and the metrics; None: no metrics are published."""


class Controller:
    """It drives one run after another over the same actors."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._driver: Driver | None = None
        self._exporter = Exporter()
        self._watch: Watch | None = None
        self._kept = KeptSlots()
        log_to_stderr(str(role))

    def __repr__(self) -> str:
        return str(self._role)

    def run(
        self,
        plan: RunPlan,
        servers: list[Any],
        receivers: list[Any],
        evaluator: Any,
        workers: list[Any],
    ) -> Iterator[list[Line] | SavedModel | Checkpoint]:
        """Train to the end of the workload, and report as it happens; the last line is an
        `Ended`. The models that the run leaves come before that, and a checkpoint after its line.

        Raises:
            RunLost: see `Driver.run`.
        """
        experiment, topology = plan.experiment, plan.topology
        log_begin(topology.paradigm, experiment, topology.workload_samples, plan.labels)
        metrics = run_metrics(
            self._exporter,
            plan.labels,
            experiment,
            topology.paradigm.phase,
            topology.workload_samples,
            plan.primary,
        )
        self._watch = self._watch or NodeWatch(plan.group)  # all runs are in one placement group
        driver = self._driver = driver_of(
            plan, servers, receivers, evaluator, workers, self._watch, self._kept
        )
        if metrics is not None and plan.checkpoint is not None:
            metrics.begin_behind(plan.checkpoint)
        assert isinstance(driver.backend, RayBackend), "a run on Ray"
        with closing(driver.backend):
            for lines in driver.run():
                log_events(lines)
                if metrics is not None:
                    metrics.take(lines)
                while driver.models:
                    yield driver.models.pop(0)
                yield lines
                while driver.checkpoints:
                    yield driver.checkpoints.pop(0)

    def held_bytes(self) -> int:
        """Return the size of the shared memory that it holds from the run before."""
        return self._kept.held_bytes

    @ray.method(concurrency_group=BESIDE)  # type: ignore[untyped-decorator]
    def stop(self) -> None:
        """Let the run under way end as `stopped`, after a last checkpoint."""
        if self._driver is not None:
            self._driver.stop()


def driver_of(
    plan: RunPlan,
    servers: Sequence[Any],
    receivers: Sequence[Any],
    evaluator: Any,
    workers: Sequence[Any],
    watch: Watch,
    kept: KeptSlots,
) -> Driver:
    """Return the driver of a run, which has not begun."""
    experiment = plan.experiment
    respawns = ActorSpecs(plan.respawns)
    if any(
        isinstance(fault, Crash) and fault.rejoin_after_s is not None for fault in experiment.faults
    ):
        respawns.fetch()  # before the run begins, so that its planned comebacks are in time
    shards = {
        name: Shards(
            [servers[index] for index in indices],
            [f"server-{plan.first_server + index}" for index in indices],
            [plan.server_sites[index] for index in indices],
            [receivers[index] for index in indices],
            clips=experiment.update.clips,
            push_bytes=plan.push_bytes[name],
        )
        for name, indices in plan.servers.items()
    }
    handles = dict(zip(plan.workers, workers, strict=True))
    backend = RayBackend(
        shards,
        evaluator,
        plan.evaluator_setup,
        handles,
        respawns,
        WorkerNodes(watch, plan.bundles, plan.server_bundles),
        plan.names,
        sites=plan.sites,
        ways_s=plan.ways_s,
        shared=_shared_vectors(plan, servers, handles, kept),
        began_at=0.0 if plan.checkpoint is None else plan.checkpoint.at,
    )
    faults = FaultPlan(experiment)
    topology = plan.topology.topology(backend, experiment, faults)
    marks = experiment.evaluation.progress_marks()
    return Driver(topology, backend, experiment, faults, marks, plan.primary, plan.checkpoint)


def _shared_vectors(
    plan: RunPlan, servers: Sequence[Any], workers: Mapping[str, Any], kept: KeptSlots
) -> SharedVectors | None:
    """Return the vectors in shared memory; None: they travel as object references."""
    if plan.shared is None:
        kept.begin({})
        return None
    [(server, shards)] = plan.servers.items()  # a pipelined run has several, and shares nothing
    pull, push = plan.vector_bytes[server], plan.push_bytes[server]
    actors = {worker: actor_id(handle) for worker, handle in workers.items()}
    parts = [actor_id(servers[index]) for index in shards]
    return SharedVectors(plan.shared, pull, push, actors, parts, kept)
