"""One candidate on the virtual engine with one seed, in time only or with gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from raysync.config import ParadigmChoice
from raysync.core.paradigm import Paradigm
from raysync.predict.candidates import Candidate
from raysync.predict.remedies import growth
from raysync.predict.setting import Setting
from raysync.predict.simulation import Simulation, simulate
from raysync.training.evaluation import OF_THE_TEST_SET
from raysync.training.preparation import TrainingPlan

PUSHES = 1_000
"""A longer run is timed for about so many pushes, since its pace does not change."""
ITERATIONS = 12
"""The iterations of each worker that are timed at least, so that the pace has settled."""
Now = Callable[[], float]
"""Returns seconds of a clock that all processes share."""


@dataclass(frozen=True)
class PlannedRun:
    candidate: Candidate
    seed: int
    trains: bool = False
    change: str = ""
    """The name of the changed cluster in `growth`; "": the cluster as it is."""
    stop_at: float = float("inf")
    """The time of the clock at which the run is given up."""


@dataclass(frozen=True)
class Outcome:
    status: str
    values: dict[str, float | None]
    """The measures, under the keys of `summary.json`; `seconds` is that of the whole workload."""
    shares: dict[str, int]
    """Slot -> the samples of its last iteration."""
    error: str = ""
    """The reason in one line, if it failed."""
    applied: Mapping[str, int] = field(default_factory=dict)
    """Slot -> its pushes that were not dropped."""

    def value(self, key: str) -> float | None:
        """Return a measure; None: the run has none, or did not end as it should."""
        return self.values.get(key) if self.status == "finished" else None


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
    if task.change:
        clusters = growth(Setting(plan, task.candidate.choice))
        changed = next((setting for name, setting in clusters if name == task.change), None)
        if changed is None:
            return None
        plan = changed.training
    if not task.trains:
        plan = _timed_plan(plan, task.candidate.choice)
    plan = plan.with_seed(task.seed)
    paradigm = plan.make(task.candidate.choice)
    if not isinstance(paradigm, Paradigm) or paradigm.infeasible_reason(
        plan.experiment.worker_count
    ):
        return None
    found = simulate(plan, task.candidate.choice, lambda: now() >= task.stop_at)
    return None if found is None else _outcome(plan, found, whole / plan.workload_samples)


def _timed_plan(plan: TrainingPlan, choice: ParadigmChoice) -> TrainingPlan:
    """Return the part of a training that shows its pace, in time only."""
    experiment = plan.experiment
    pushes = max(PUSHES, ITERATIONS * experiment.worker_count)
    samples = plan.workload_samples
    if not experiment.faults:  # faults have their times
        samples = min(samples, round(pushes * plan.push_samples(choice)))
    only = {"timing": "only", "target": None, "stop": None}
    return replace(
        plan, experiment=experiment.model_copy(update=only), shards={}, workload_samples=samples
    )


def _outcome(plan: TrainingPlan, found: Simulation, scale: float) -> Outcome:
    """
    Args:
        plan: what ran.
        found: what came out.
        scale: the whole workload / the part of it that ran.
    """
    values = {
        key: None if value is None else float(value)
        for key, value in found.summary.items()
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    }
    if values["seconds"] is not None:
        values["seconds"] *= scale
    if found.last_metrics:
        last = found.last_metrics
        tested = f"{OF_THE_TEST_SET}{plan.primary.name}"
        values[OF_THE_TEST_SET] = last.get(tested, last.get(plan.primary.name))
    error = " ".join(str(found.summary["error"]).split())
    return Outcome(
        status=found.summary["status"],
        values=values,
        shares=found.shares,
        error=error,
        applied=found.applied,
    )
