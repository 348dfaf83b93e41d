"""Decoupled runs on Ray: a cast of actors of their own, for a session to start and keep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ray

from raysync.cluster.session import Cast, Crew, Session
from raysync.core.journal import Line
from raysync.decoupled.actors import ModuleServer, StageActor, StagePlan, WholeEvaluator
from raysync.decoupled.controller import DecoupledController, DecoupledRunPlan
from raysync.decoupled.pipelines import Stage
from raysync.decoupled.plan import DecoupledPlan, placed_as
from raysync.record.metrics import Title

CAST = Cast(server=ModuleServer, evaluator=WholeEvaluator, controller=DecoupledController, worker=StageActor,
            first_server=1, stays_after=("finished",))  # else stages may wait for neighbours, with passes of the old run


def run_on_ray(session: Session, plan: DecoupledPlan, title: Title | None = None) -> Iterator[list[Line]]:
    """Train, and yield what happens, in order; the last line is an `Ended`. The title names the run in logs and metrics.

    Raises:
        ConfigError: there is no such cluster, or it cannot hold the experiment.
        RunFailed: the actors do not start, or the controller died.
    """
    def begin(crew: Crew) -> tuple[DecoupledRunPlan, dict[Stage, Any]]:
        return _begin(session, crew, plan, title), dict(zip(plan.slots, crew.workers, strict=True))

    names = [plan.name(stage) for stage in plan.slots]
    return session.perform(placed_as(plan.task.experiment, plan.rule), CAST, names, begin)


def _begin(session: Session, crew: Crew, plan: DecoupledPlan, title: Title | None) -> DecoupledRunPlan:
    task, rule = plan.task, plan.rule
    experiment, data = task.experiment, session.shared(task.data)
    published = title if experiment.cluster.metrics else None
    resets = {f"server-{module}": server.reset.remote(task.model, rule, experiment.update, module, published)
              for module, server in enumerate(crew.servers, start=1)}
    evaluator_setup = (*map(ray.put, (task.model, rule, experiment.evaluation)), data)
    resets["evaluator"] = crew.evaluator.reset.remote(*evaluator_setup)
    for (stage, slot), actor in zip(plan.slots.items(), crew.workers, strict=True):
        resets[slot] = actor.reset.remote(
            StagePlan(stage, slot, plan.group(stage), task.model, rule, plan.draws(stage[0]), experiment.batch_size,
                      experiment.seed, plan.shares[stage[1]], plan.output_bytes[stage[1]]), data)
    session.await_reset(resets)
    return DecoupledRunPlan(rule, experiment, task.workload_samples, plan.batches,
                            {stage: plan.name(stage) for stage in plan.slots}, plan.slots, title,
                            evaluator_setup)
