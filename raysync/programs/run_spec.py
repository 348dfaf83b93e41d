"""What all actors of a run know, stored once in the object store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raysync.config import Experiment, WorkerGroup
from raysync.core.checkpoint import Checkpoint
from raysync.core.metrics import PrimaryMetric
from raysync.decoupled.pipelined_topology import PipelinedPlan, server_of
from raysync.emulation.fault_plan import FaultPlan
from raysync.emulation.step_time import one_way_s
from raysync.engine.backend import Backend
from raysync.engine.driver import Driver
from raysync.engine.topology import SERVER, DataParallelPlan
from raysync.record.metrics_registry import RunLabels
from raysync.step_fault import StepFault
from raysync.training.data.batches import Batches


@dataclass(frozen=True)
class RunSpec:
    """One run. It needs no torch, which the controller on Ray does without."""

    experiment: Experiment  # as its actors are placed: each stage of a cut network has a server
    topology: DataParallelPlan | PipelinedPlan
    # slot of a worker, as the journal calls it -> its batches; empty if nothing is trained
    batches: Mapping[str, Batches]
    vector_bytes: Mapping[str, int]  # id of a server -> the bytes of its weights
    push_bytes: Mapping[str, int]  # id of a server -> the bytes of a gradient for it
    primary: PrimaryMetric  # by which the task's models are judged
    # the run's names in logs and metrics; None: no metrics are published
    labels: RunLabels | None = None

    @property
    def is_pipelined(self) -> bool:
        """Whether the workers have stages of the network."""
        return isinstance(self.topology, PipelinedPlan)

    @property
    def trains(self) -> bool:
        """Whether gradients are computed; otherwise calls only take time."""
        return bool(self.batches)

    @property
    def slots(self) -> list[str]:
        """The slots of the workers, as the journal calls them."""
        return list(self.batches)

    def group(self, slot: str) -> WorkerGroup:
        return self.topology.group(slot)

    @property
    def servers(self) -> Mapping[str, Sequence[int]]:
        """Id of a server -> the indices of its shards among the server actors."""
        count = self.experiment.cluster.server_shards
        if self.is_pipelined:
            return {server_of(index + 1): [index] for index in range(count)}
        return {SERVER: range(count)}

    @property
    def first_server(self) -> int:
        """The number in the name of the first server actor: stages count from 1."""
        return 1 if self.is_pipelined else 0

    def upload_s(self, slot: str, fault: StepFault) -> float:
        """Return the seconds of a gradient's upload over its worker's emulated link."""
        if self.is_pipelined:  # see `Capability.EMULATE_LINKS`
            return 0.0
        return one_way_s(self.group(slot).link, self.push_bytes[SERVER], fault)

    def driver(self, backend: Backend, checkpoint: Checkpoint | None = None) -> Driver:
        """Return the driver of the run, or of its rest from a checkpoint; see `Driver`."""
        experiment, faults = self.experiment, FaultPlan(self.experiment)
        return Driver(
            topology=self.topology.topology(backend, experiment, faults),
            backend=backend,
            experiment=experiment,
            faults=faults,
            marks=experiment.evaluation.progress_marks() if self.trains else [],
            primary=self.primary,
            checkpoint=checkpoint,
        )

    @property
    def keeps_actors_after(self) -> Sequence[str]:
        """The endings after which the next run can reuse the actors.

        Otherwise stages may wait for neighbours, with passes of the old run.
        """
        return ("finished",) if self.is_pipelined else ("finished", "diverged")

    @property
    def metric_labels(self) -> RunLabels | None:
        """The labels of the actors' metrics; None: they publish none."""
        return self.labels if self.experiment.cluster.metrics.published else None
