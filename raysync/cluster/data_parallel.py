"""Data-parallel runs on Ray: what each actor is told at the beginning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysync.cluster.evaluator import WholeModel
from raysync.cluster.server import ShardPlan
from raysync.cluster.worker import Worker, WorkerPlan
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.engine.topology import SERVER, DataParallelPlan
from raysync.training.task import Task


class DataParallelLayout:
    """The actors of a run whose workers have the whole model; see `session.Layout`."""

    worker: type = Worker
    first_server = 0
    stays_after: Sequence[str] = ("finished", "diverged")
    delivers = True

    def __init__(self, task: Task, paradigm: AnyParadigm) -> None:
        assert isinstance(paradigm, Paradigm), f"{paradigm.name} is another kind of run"
        self.experiment = task.experiment
        self.slots: Sequence[str] = list(task.groups)
        self.servers: Mapping[str, Sequence[int]] = {
            SERVER: range(task.experiment.cluster.server_shards)
        }
        self.topology = DataParallelPlan(paradigm, task.workload_samples)
        self.assembly = WholeModel(task.model)
        self._task = task

    def server_plans(self) -> Sequence[Any]:
        """As `Layout.server_plans`."""
        task, shards = self._task, self.experiment.cluster.server_shards
        return [
            ShardPlan(task.model, self.experiment.update, shard, shards) for shard in range(shards)
        ]

    def worker_plans(self) -> Sequence[WorkerPlan]:
        """As `Layout.worker_plans`."""
        task, experiment = self._task, self.experiment
        return [
            WorkerPlan(
                slot,
                group,
                task.model,
                task.batches(slot),
                experiment.batch_size,
                experiment.seed,
                task.vector_bytes,
                experiment.cluster.server_shards,
            )
            for slot, group in task.groups.items()
        ]
