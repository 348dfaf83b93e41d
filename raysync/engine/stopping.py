"""The reasons for a run's end before its workload is done.

The run stops (settings of `stop` about evaluations), diverges (a value is not finite), or is
stopped from outside, after a last checkpoint if it takes any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from raysync.config import Experiment
from raysync.config.goal import MEASURED, StopGoal
from raysync.core.events import Pushed
from raysync.core.finding import Finding
from raysync.core.journal import Evaluation
from raysync.core.metrics import PrimaryMetric
from raysync.engine.demands import stop_metric

MOST_SAMPLES = 5  # samples of a batch that a message lists


@dataclass(frozen=True)
class EarlyEnd:
    """What ends a run before its work is done."""

    by: str = ""  # the setting: `stop.patience`
    why: str = ""  # a clause
    reached: bool = False
    """Whether the run has reached what it was to reach."""


class Stopping:
    """Decides from pushes and evaluations whether the run should end."""

    def __init__(
        self, experiment: Experiment, primary: PrimaryMetric, workload_samples: float = inf
    ) -> None:
        self.is_requested = False  # from outside
        self.why_diverged = ""  # the first value that was not finite, and its place
        self.early = EarlyEnd()
        self._primary, self._workload_samples = primary, workload_samples
        self._stop, self._target = experiment.stop, experiment.target
        self._metric = stop_metric(experiment, primary) or primary
        self._best: float | None = None
        self._version = -1  # of the latest evaluation
        self._not_better = 0  # evaluations in a row that were not better than the best before
        self._evaluations = 0  # marks that were evaluated

    def reason_to_stop(self, evaluation: Evaluation) -> EarlyEnd | None:
        """Return why the run should end after this evaluation; None if it should not."""
        self._evaluations += 1
        if self._stop is None:
            return None
        is_new = evaluation.version != self._version  # marks passed at once are one evaluation
        self._version = evaluation.version
        why = self._lost_patience(evaluation) if is_new else ""
        impatient = EarlyEnd("stop.patience", why) if why else None
        return next(self._goals_met(evaluation), impatient)

    def _goals_met(self, evaluation: Evaluation) -> Iterator[EarlyEnd]:
        stop, target, primary = self._stop, self._target, self._primary
        assert stop is not None, "a run that nothing stops"
        if stop.at_target and target is not None:
            value = evaluation.value(target.metric)
            if target.is_met(value):
                why = f"the target is met: {target.metric} is {value:.6g}"
                yield EarlyEnd("stop.at_target", why, reached=True)
        for goal in stop.when:
            value = self._value(goal, evaluation)
            if goal.is_met(value, primary):
                by, why = f"stop.when.{goal.metric}", f"{goal.metric} is {value:.6g}"
                yield EarlyEnd(by, why, reached=goal.is_wanted(primary))

    def _value(self, goal: StopGoal, evaluation: Evaluation) -> float | None:
        """Return a metric of the evaluation, or one of `MEASURED`."""
        measured = {
            "progress": evaluation.progress,
            "samples": evaluation.progress * self._workload_samples,
            "training_iteration": float(self._evaluations),
            "seconds": evaluation.at,
        }
        assert measured.keys() == set(MEASURED), "a measure without a value"
        return measured[goal.metric] if goal.metric in measured else evaluation.value(goal.metric)

    def _lost_patience(self, evaluation: Evaluation) -> str:
        """Return a clause why patience has run out; "" if it has not."""
        stop = self._stop
        assert stop is not None, "a run that nothing stops"
        if stop.patience is None:
            self._not_better = 0
            return ""
        value = evaluation.value(self._metric.name)
        assert value is not None, "an evaluation without the metric of stop"
        if self._is_better(value, stop.min_delta):
            self._best, self._not_better = value, 0
            return ""
        self._not_better += 1
        if self._not_better < stop.patience:
            return ""
        by = f" by more than {stop.min_delta:g}" if stop.min_delta else ""
        count = f"{stop.patience} evaluations in a row" if stop.patience > 1 else "an evaluation"
        return f"{self._metric.name} was not better than {self._best:.6g}{by} for {count}"

    def _is_better(self, value: float, min_delta: float) -> bool:
        if self._best is None:
            return True
        demanded = self._best + (min_delta if self._metric.rises else -min_delta)
        return self._metric.is_better(value, demanded)

    def detect_divergence(self, evaluations: Sequence[Evaluation]) -> bool:
        """Return whether a loss is not finite, and store which."""
        if all(isfinite(evaluation.loss) for evaluation in evaluations):
            return False
        self.why_diverged = self.why_diverged or (
            f"the loss of the evaluation of version {evaluations[0].version} is not finite; the"
            " losses and gradients of all earlier pushes are finite"
        )
        return True

    def state(self) -> dict[str, Any]:
        return {
            "best": self._best,
            "version": self._version,
            "not_better": self._not_better,
            "evaluations": self._evaluations,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._best, self._version = state["best"], state["version"]
        self._not_better = state["not_better"]
        self._evaluations = state.get("evaluations", 0)  # earlier versions did not count them


def divergence(event: Pushed, finding: Finding) -> str:
    """Describe the push with which a run diverged, without a full stop."""
    parameter = f" of {finding.parameter}" if finding.parameter else ""
    first = finding.first
    if first == "weights":
        cause = f"an update up to version {event.base}" if event.base else "the initial model"
        what = f"the weights{parameter}, in {cause}"
    else:
        what = f"the {first}{parameter}, at version {event.base}"
    return (
        f"{event.worker}, clock {event.clock}, samples {_listed(finding.samples)}: the first"
        f" non-finite value: {what}"
    )


def _listed(samples: Sequence[int]) -> str:
    names = ", ".join(map(str, samples[:MOST_SAMPLES]))
    more = len(samples) - MOST_SAMPLES
    return f"{names} and {more} more" if more > 0 else names
