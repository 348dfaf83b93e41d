"""Pipelined runs on Ray: what each actor is told at the beginning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysync.cluster.stage import StageActor, StagePlan, Stages, StageServerPlan
from raysync.decoupled.plan import DecoupledPlan, placed_as
from raysync.decoupled.topology import server_of


class PipelinedLayout:
    """The actors of a run whose network is cut into stages; see `session.Layout`."""

    worker: type = StageActor
    first_server = 1
    stays_after: Sequence[str] = (
        "finished",
    )  # else stages may wait for neighbours, with passes of the old run
    delivers = False  # no stage is lost but with the run

    def __init__(self, plan: DecoupledPlan) -> None:
        self.experiment = placed_as(plan.task.experiment, plan.paradigm)
        self.slots: Sequence[str] = [plan.name(stage_id) for stage_id in plan.slots]
        self.servers: Mapping[str, Sequence[int]] = {
            server_of(stage): [stage - 1] for stage in plan.shares
        }
        self.topology = plan.topology()
        self.assembly = Stages(plan.task.model, plan.paradigm)
        self._plan = plan

    def server_plans(self) -> Sequence[Any]:
        """As `Layout.server_plans`."""
        task, paradigm = self._plan.task, self._plan.paradigm
        return [
            StageServerPlan(task.model, paradigm, task.experiment.update, stage)
            for stage in self._plan.shares
        ]

    def worker_plans(self) -> Sequence[StagePlan]:
        """As `Layout.worker_plans`."""
        plan, experiment = self._plan, self._plan.task.experiment
        return [
            StagePlan(
                stage_id,
                slot,
                plan.group(stage_id),
                plan.task.model,
                plan.paradigm,
                plan.draws(stage_id[0]),
                experiment.batch_size,
                experiment.seed,
                plan.shares[stage_id[1]],
                plan.output_bytes[stage_id[1]],
            )
            for stage_id, slot in plan.slots.items()
        ]
