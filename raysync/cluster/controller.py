"""The controller actor: the driver of a run on Ray. Its process owns all gradients and weights."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup

from raysync.cluster.actors.actor_spec import ActorSpecs, Role
from raysync.cluster.monitoring import Exporter, log_begin, log_events, log_to_stderr
from raysync.cluster.node_watch import NodeWatch, WorkerNodes
from raysync.cluster.ray_backend import RayBackend
from raysync.cluster.ray_private.names import actor_id
from raysync.cluster.shards import Shards
from raysync.cluster.transports.transport import BETWEEN_RUNS, Transport, TransportPlan, Writers
from raysync.config import Crash
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Line
from raysync.core.stages import rosters_in
from raysync.engine.driver import Driver
from raysync.engine.kept_models import SavedModel
from raysync.engine.topology import rosters_by_stage
from raysync.programs.run_spec import RunSpec
from raysync.record.collector import Collector
from raysync.record.measures import Measures

BESIDE = "beside"  # Ray's concurrency group of calls during a run


@dataclass(frozen=True, kw_only=True)
class RunActors:
    """The actors of a run, and their places."""

    servers: Sequence[Any]  # Ray's handles of the server actors
    receivers: Sequence[Any]  # one beside each server; None if the cluster is one node
    evaluator: Any
    workers: Mapping[str, Any]  # id of a worker -> its handle
    names: Mapping[str, str]  # Ray's id of an actor -> the id of the worker or server
    sites: Mapping[str, str]  # id of a worker -> Ray's id of its node
    server_sites: Sequence[str]  # Ray's node id of each server actor
    group: PlacementGroup
    bundles: Mapping[str, int]  # slot -> the index of its workers' bundle
    # id of a server -> the indices of its shards' bundles
    server_bundles: Mapping[str, Sequence[int]]
    setup: tuple[Any, Any]  # references to the `RunSpec` and the model, for each actor's `reset`
    # a reference to a mapping: slot of a worker, or kind of a server -> `ActorSpec` for restarts
    respawns: Any
    transport: TransportPlan


class Controller:
    """Drives one run after another over the same actors.

    Events stream to the session, which alone writes the record; a sign of life comes every second.
    """

    def __init__(self, role: Role) -> None:
        self._role = role
        self._driver: Driver | None = None
        self._exporter = Exporter()
        self._watch: NodeWatch | None = None
        self._transport: Transport | None = None  # of the latest run
        log_to_stderr(str(role))

    def __repr__(self) -> str:
        return str(self._role)

    def run(
        self, spec: RunSpec, actors: RunActors, checkpoint: Checkpoint | None
    ) -> Iterator[list[Line] | SavedModel | Checkpoint]:
        """Train to the end of the workload, and yield reports; the last line is an `Ended`.

        The run's models come before that, and a checkpoint after its line. `checkpoint`, to resume
        from, lacks the files of the servers.

        Raises:
            RunLost: see `Driver.run`.
        """
        experiment, topology = spec.experiment, spec.topology
        log_begin(topology.paradigm, experiment, topology.workload_samples, spec.labels)
        collector = collector_of(spec, checkpoint)
        self._watch = self._watch or NodeWatch(actors.group)  # all runs are in one placement group
        transport = actors.transport.begin(writers_of(spec, actors), self._transport)
        self._transport = transport
        # Now nobody refers to the transport of the previous run, whose memory this may free.
        for forget in BETWEEN_RUNS:
            forget()
        driver = self._driver = driver_of(spec, actors, checkpoint, self._watch, transport)
        assert isinstance(driver.backend, RayBackend), "a run on Ray"
        with closing(driver.backend):
            for lines in driver.run():
                log_events(lines)
                if collector is not None:
                    # repeated with each report: a driver that resumes replaces the machine
                    collector.measures.share(rosters_by_stage(driver.topology))
                    self._exporter.publish(partial(collector.collect, lines))
                while driver.models:
                    yield driver.models.pop(0)
                yield lines
                while driver.checkpoints:
                    yield driver.checkpoints.pop(0)
        # The driver holds the log of its server, and refers to itself: without this the vectors of
        # one run lie in memory during the next.
        self._driver = None
        del driver
        gc.collect()

    def held_bytes(self) -> int:
        """Return the memory of this node that the previous run's transport holds."""
        return self._transport.held_bytes if self._transport is not None else 0

    @ray.method(concurrency_group=BESIDE)  # type: ignore[untyped-decorator]
    def stop(self) -> None:
        """Let the run in progress end as `stopped`, after a last checkpoint."""
        driver = self._driver  # read once: `run` sets it to None in another thread
        if driver is not None:
            driver.stop()


def collector_of(spec: RunSpec, checkpoint: Checkpoint | None) -> Collector | None:
    """Return the collector of a run's metrics; None: it publishes none."""
    experiment, topology = spec.experiment, spec.topology
    if spec.metric_labels is None:
        return None
    measures = Measures(topology.workload_samples, experiment.aim(spec.primary), spec.primary)
    if checkpoint is not None:
        measures.begin_at(rosters_in(checkpoint.state["topology"]["machine"]), checkpoint.at)
    return Collector(
        spec.metric_labels,
        topology.paradigm.phase,
        measures,
        experiment.cluster.metrics.per_worker_histograms,
    )


def writers_of(spec: RunSpec, actors: RunActors) -> Writers:
    return Writers(
        sum(spec.vector_bytes.values()),
        sum(spec.push_bytes.values()),
        {worker: actor_id(handle) for worker, handle in actors.workers.items()},
        [actor_id(server) for server in actors.servers],
    )


def driver_of(
    spec: RunSpec,
    actors: RunActors,
    checkpoint: Checkpoint | None,
    watch: NodeWatch,
    transport: Transport,
) -> Driver:
    experiment = spec.experiment
    respawns = ActorSpecs(actors.respawns)
    if any(
        isinstance(fault, Crash) and fault.rejoin_after_s is not None for fault in experiment.faults
    ):
        respawns.fetch()  # now: a planned restart must not wait for the import of torch
    shards = {
        name: Shards(
            [actors.servers[index] for index in indices],
            [f"server-{spec.first_server + index}" for index in indices],
            [actors.server_sites[index] for index in indices],
            [actors.receivers[index] for index in indices],
            clips=experiment.update.clips,
            push_bytes=spec.push_bytes[name],
        )
        for name, indices in spec.servers.items()
    }
    backend = RayBackend(
        servers=shards,
        evaluator=actors.evaluator,
        evaluator_setup=actors.setup,
        workers=actors.workers,
        respawns=respawns,
        nodes=WorkerNodes(watch, actors.bundles, actors.server_bundles),
        names=actors.names,
        sites=actors.sites,
        upload_s=spec.upload_s,
        transport=transport,
        began_at=0.0 if checkpoint is None else checkpoint.at,
    )
    return spec.driver(backend, checkpoint)
