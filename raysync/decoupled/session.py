"""Decoupled runs on Ray: their actors, for one run, on the connection of a session."""

from __future__ import annotations

from collections.abc import Iterator

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError

from raysync.cluster.controller import START_DEADLINE_S
from raysync.cluster.session import Cast, Crew, Session
from raysync.core.journal import Line
from raysync.decoupled.actors import ModuleServer, StageActor, StagePlan, WholeEvaluator
from raysync.decoupled.controller import DecoupledController, DecoupledRunPlan
from raysync.decoupled.plan import DecoupledPlan, placed_as
from raysync.errors import RunFailed
from raysync.record.metrics import Title

CAST = Cast(server=ModuleServer, evaluator=WholeEvaluator, controller=DecoupledController, worker=StageActor)


def run_on_ray(session: Session, plan: DecoupledPlan, title: Title | None = None) -> Iterator[list[Line]]:
    """Train, and yield what happens, in order; the last line is an `Ended`. Metrics are published under the title.

    Raises:
        ConfigError: there is no such cluster, or it cannot hold the experiment.
        RunFailed: the actors do not start, or the controller died.
    """
    with session.crew_of_another_kind(placed_as(plan.task.experiment, plan.rule), CAST) as crew:
        run = _reset(session, crew, plan, title if plan.task.experiment.cluster.metrics else None)
        stages = dict(zip(plan.slots, crew.workers, strict=True))
        try:
            for reference in crew.controller.run.remote(run, crew.servers, crew.evaluator, stages):
                yield ray.get(reference)
        except RayError as error:
            raise RunFailed(f"the controller: {error}") from error


def _reset(session: Session, crew: Crew, plan: DecoupledPlan, title: Title | None) -> DecoupledRunPlan:
    task, rule = plan.task, plan.rule
    experiment, data = task.experiment, session.shared(task.data)
    resets = {f"server-{module}": server.reset.remote(task.model, rule, experiment.update, module, title)
              for module, server in enumerate(crew.servers, start=1)}
    resets["evaluator"] = crew.evaluator.reset.remote(task.model, rule, experiment.evaluation, data)
    for (stage, slot), actor in zip(plan.slots.items(), crew.workers, strict=True):
        resets[slot] = actor.reset.remote(
            StagePlan(stage, slot, plan.group(stage), task.model, rule, plan.draws(stage[0]), experiment.batch_size,
                      experiment.seed, plan.shares[stage[1]], plan.output_bytes[stage[1]]), data)
    try:
        session.places = dict(zip(resets, ray.get(list(resets.values()), timeout=START_DEADLINE_S), strict=True))
    except (ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError) as error:
        raise RunFailed(f"the actors did not start: {error}") from error
    return DecoupledRunPlan(rule, experiment, task.workload_samples, plan.batches,
                            {stage: plan.name(stage) for stage in plan.slots}, plan.slots, title)
