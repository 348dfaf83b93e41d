"""One candidate on the virtual engine with one seed, in time only or with gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from raysync.config import ParadigmChoice
from raysync.core.decisions import Release
from raysync.core.ids import WorkerId
from raysync.core.journal import Entry
from raysync.core.paradigm import Paradigm
from raysync.engine.topology import rosters_by_stage
from raysync.predict.candidates import Candidate
from raysync.predict.growth import Change
from raysync.record.measures import Measures
from raysync.training.evaluation import OF_THE_TEST_SET
from raysync.training.preparation import TrainingPlan
from raysync.virtual.engine import driver_of

PUSHES = 1_000
"""A longer run is timed for about so many pushes, since its pace does not change."""
ITERATIONS = 12
"""The iterations of each worker that are timed at least, so that the pace has settled."""
Now = Callable[[], float]
"""Returns seconds of a clock that all processes share."""


@dataclass(frozen=True)
class PlannedRun:
    """A run to make."""

    candidate: Candidate
    seed: int
    trains: bool = False
    """Whether gradients are computed."""
    change: Change | None = None
    """What is different about the cluster."""
    stop_at: float = float("inf")
    """The time of the clock at which the run is given up."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to."""

    status: str
    values: dict[str, float | None]
    """The measures, under the keys of `summary.json`; `seconds` is that of the whole workload."""
    shares: dict[str, int]
    """Worker slot -> the samples of its latest iteration."""
    error: str = ""
    """The reason in one line, if it failed."""

    def value(self, key: str) -> float | None:
        """Return a measure; None: the run has none, or did not end as it should."""
        return self.values.get(key) if self.status == "finished" else None


def timed_plan(plan: TrainingPlan, choice: ParadigmChoice) -> TrainingPlan:
    """Return the part of a training that shows its pace, in time only."""
    experiment = plan.experiment
    pushes = max(PUSHES, ITERATIONS * experiment.worker_count)
    samples = plan.workload_samples
    if not experiment.faults:  # they have their times
        samples = min(samples, round(pushes * plan.push_samples(choice)))
    only = {"timing": "only", "target": None, "stop": None}
    return replace(
        plan, experiment=experiment.model_copy(update=only), shards={}, workload_samples=samples
    )


def perform(plan: TrainingPlan, task: PlannedRun, now: Now) -> Outcome | None:
    """Make a run; None: its time was up, or the change makes it impossible.

    Args:
        plan: the training, with gradients unless its experiment has none.
        task: what to run.
        now: the clock of `task.stop_at`.
    """
    if now() >= task.stop_at:
        return None
    whole = plan.workload_samples
    plan = replace(plan, experiment=task.candidate.applied_to(plan.experiment))
    if task.change is not None:
        changed = task.change.applied_to(plan, task.candidate.choice)
        if changed is None:
            return None
        plan = changed
    if not task.trains:
        plan = timed_plan(plan, task.candidate.choice)
    plan = plan.with_seed(task.seed)
    paradigm = plan.make(task.candidate.choice)
    if not isinstance(paradigm, Paradigm) or paradigm.infeasible_reason(
        plan.experiment.worker_count
    ):
        return None
    measures = Measures(
        plan.workload_samples, plan.experiment.target, plan.primary, plan.chance_accuracy
    )
    shares = plan.experiment.batch_sizes
    driver = driver_of(plan, paradigm)
    measures.share(rosters_by_stage(driver.topology))
    for lines in driver.run():
        measures.take(lines)
        for line in lines:
            if isinstance(line, Entry):
                for decision in line.decisions:
                    if isinstance(decision, Release) and decision.batch_size is not None:
                        shares[str(WorkerId(decision.worker).slot)] = decision.batch_size
        if now() >= task.stop_at:
            return None
    return _outcome(plan, measures, shares, whole / plan.workload_samples)


def _outcome(
    plan: TrainingPlan, measures: Measures, shares: dict[str, int], longer: float
) -> Outcome:
    """
    Args:
        plan: what ran.
        measures: its measures.
        shares: see `Outcome`.
        longer: the whole workload / the part of it that ran.
    """
    summary: dict[str, Any] = measures.summary()
    values = {
        key: None if value is None else float(value)
        for key, value in summary.items()
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    }
    if values["seconds"] is not None:
        values["seconds"] *= longer
    if plan.experiment.trains and measures.evaluations:
        last = measures.evaluations[-1].metrics
        tested = f"{OF_THE_TEST_SET}{plan.primary.name}"
        values[OF_THE_TEST_SET] = last.get(tested, last.get(plan.primary.name))
    error = " ".join(str(summary["error"]).split())
    return Outcome(summary["status"], values, shares, error)
