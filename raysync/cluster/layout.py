"""The actors of a run, and what each is told at its beginning: one layout for each topology."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from raysync.cluster.controller import TopologyPlan
from raysync.cluster.evaluator import Assembly, WholeModel
from raysync.cluster.server import ServerPlan, ShardPlan
from raysync.cluster.stage import StageActor, StagePlan, Stages, StageServerPlan
from raysync.cluster.worker import Worker, WorkerPlan
from raysync.config import Experiment
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.decoupled.plan import DecoupledPlan, check, placed_as, plan_of
from raysync.decoupled.topology import server_of
from raysync.engine.step_time import one_way_s
from raysync.engine.topology import SERVER, DataParallelPlan
from raysync.paradigms.decoupled import Decoupled
from raysync.training.preparation import TrainingPlan


class Layout(Protocol):
    """The actors of a run, and what each is told at its beginning."""

    @property
    def experiment(self) -> Experiment:
        """The experiment as its actors are placed."""

    @property
    def worker(self) -> type:
        """The class of the workers."""

    @property
    def slots(self) -> Sequence[str]:
        """The slots of the workers, as the journal calls them."""

    @property
    def first_server(self) -> int:
        """The number of the first server."""

    @property
    def servers(self) -> Mapping[str, Sequence[int]]:
        """Id of a server -> which of the server actors are its shards."""

    @property
    def stays_after(self) -> Sequence[str]:
        """How a run must have ended for the actors to be good for the next."""

    @property
    def vector_bytes(self) -> Mapping[str, int]:
        """Id of a server -> the bytes of its weights."""

    @property
    def push_bytes(self) -> Mapping[str, int]:
        """Id of a server -> the bytes of a gradient for it."""

    @property
    def ways_s(self) -> Mapping[str, float]:
        """Slot -> the seconds that a gradient takes over its worker's emulated link."""

    @property
    def shares_memory(self) -> bool:
        """Whether vectors may travel in shared memory."""

    @property
    def topology(self) -> TopologyPlan:
        """The plan of the topology."""

    @property
    def assembly(self) -> Assembly:
        """How the evaluated model is put together."""

    def server_plans(self) -> Sequence[ServerPlan]:
        """Return what each server actor keeps."""

    def worker_plans(self) -> Sequence[Any]:
        """Return the plan of each worker, in the order of the slots."""


def layout_of(training: TrainingPlan, paradigm: AnyParadigm) -> Layout:
    """Return the actors of a run.

    Raises:
        ConfigError: the network cannot be cut as the paradigm says, or a setting does
            not go with it.
    """
    if isinstance(paradigm, Decoupled):
        return PipelinedLayout(plan_of(training, paradigm))
    check(training.experiment, paradigm)
    return DataParallelLayout(training, paradigm)


class DataParallelLayout:
    """The actors of a run whose workers have the whole model."""

    worker: type = Worker
    first_server = 0
    shares_memory = True
    stays_after: Sequence[str] = ("finished", "diverged")

    def __init__(self, training: TrainingPlan, paradigm: AnyParadigm) -> None:
        assert isinstance(paradigm, Paradigm), f"{paradigm.name} is another kind of run"
        self.experiment = training.experiment
        self.slots: Sequence[str] = list(training.groups)
        self.servers: Mapping[str, Sequence[int]] = {
            SERVER: range(training.experiment.cluster.server_shards)
        }
        self.topology = DataParallelPlan(
            paradigm,
            training.workload_samples,
            training.groups,
            training.has_buffers,
            training.vector_bytes,
        )
        self.assembly = WholeModel(training.experiment.seed)
        self.vector_bytes: Mapping[str, int] = {SERVER: training.vector_bytes}
        self.push_bytes: Mapping[str, int] = {SERVER: training.push_bytes}
        self.ways_s: Mapping[str, float] = {
            slot: one_way_s(group.link, training.push_bytes)
            for slot, group in training.groups.items()
        }
        self._training = training

    def server_plans(self) -> Sequence[Any]:
        """See `Layout.server_plans`."""
        experiment, cluster = self.experiment, self.experiment.cluster
        shards = cluster.server_shards
        return [
            ShardPlan(experiment.seed, experiment.update, shard, shards, cluster.wire)
            for shard in range(shards)
        ]

    def worker_plans(self) -> Sequence[WorkerPlan]:
        """See `Layout.worker_plans`."""
        training, experiment = self._training, self.experiment
        return [
            WorkerPlan(
                slot,
                group,
                training.batches(slot),
                experiment.data.loader_workers,
                experiment.micro_batch,
                experiment.batch_size_of(slot),
                experiment.seed,
                training.vector_bytes,
                experiment.cluster.server_shards,
                experiment.cluster.wire,
                shares_memory=experiment.cluster.transport in ("shared-memory", "auto"),
            )
            for slot, group in training.groups.items()
        ]


class PipelinedLayout:
    """The actors of a run whose network is cut into stages."""

    worker: type = StageActor
    first_server = 1
    shares_memory = False  # see `Capability.SHARE_MEMORY`
    # Otherwise stages may wait for neighbours, with passes of the old run.
    stays_after: Sequence[str] = ("finished",)
    ways_s: Mapping[str, float] = MappingProxyType({})  # see `Capability.EMULATE_LINKS`

    def __init__(self, plan: DecoupledPlan) -> None:
        self.experiment = placed_as(plan.training.experiment, plan.paradigm)
        self.slots: Sequence[str] = [plan.name(stage_id) for stage_id in plan.slots]
        self.servers: Mapping[str, Sequence[int]] = {
            server_of(stage): [stage - 1] for stage in plan.shares
        }
        self.vector_bytes: Mapping[str, int] = {
            server_of(stage): plan.vector_bytes[stage] for stage in plan.shares
        }
        self.push_bytes = self.vector_bytes  # see `Capability.REDUCED_WIRE`
        self.topology = plan.topology()
        self.assembly = Stages(plan.training.experiment.seed, plan.paradigm)
        self._plan = plan

    def server_plans(self) -> Sequence[Any]:
        """See `Layout.server_plans`."""
        experiment, paradigm = self._plan.training.experiment, self._plan.paradigm
        return [
            StageServerPlan(experiment.seed, paradigm, experiment.update, stage)
            for stage in self._plan.shares
        ]

    def worker_plans(self) -> Sequence[StagePlan]:
        """See `Layout.worker_plans`."""
        plan, experiment = self._plan, self._plan.training.experiment
        return [
            StagePlan(
                stage_id,
                slot,
                plan.group(stage_id),
                plan.paradigm,
                plan.batches_of(stage_id[0]),
                experiment.data.loader_workers,
                experiment.batch_size,
                experiment.seed,
                plan.shares[stage_id[1]],
                plan.output_bytes[stage_id],
            )
            for stage_id, slot in plan.slots.items()
        ]
