"""The reasons for a run's end before its workload is done.

The run stops (settings of `stop` about evaluations), diverges (a value is not finite), or is
stopped from outside, after a last checkpoint if it takes any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from raysync.config import Experiment
from raysync.core.events import Pushed
from raysync.core.finding import Finding
from raysync.core.journal import Evaluation
from raysync.core.metrics import MODES, PrimaryMetric, known
from raysync.errors import ConfigError, unknown_name

MOST_SAMPLES = 5  # samples of a batch that a message lists


class Stopping:
    """Decides from pushes and evaluations whether the run should end."""

    def __init__(self, experiment: Experiment, primary: PrimaryMetric) -> None:
        self.is_requested = False  # from outside
        self.why_diverged = ""  # the first value that was not finite, and its place
        self._stop, self._target = experiment.stop, experiment.target
        self._metric = stop_metric(experiment, primary) or primary
        self._best: float | None = None
        self._version = -1  # of the latest evaluation
        self._not_better = 0  # evaluations in a row that were not better than the best before

    def reason_to_stop(self, evaluation: Evaluation) -> str:
        """Return a clause why the run should end after this evaluation; "" if it should not."""
        stop = self._stop
        if stop is None or evaluation.version == self._version:
            return ""  # several marks passed at once are one evaluation
        self._version = evaluation.version
        if stop.at_target and self._target is not None:
            value = evaluation.value(self._target.metric)
            if self._target.is_met(value):
                return f"the target is met: {self._target.metric} is {value:.6g}"
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
        return {"best": self._best, "version": self._version, "not_better": self._not_better}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._best, self._version = state["best"], state["version"]
        self._not_better = state["not_better"]


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


def check_metrics(
    experiment: Experiment, metrics: Sequence[str] | None, primary: PrimaryMetric
) -> None:
    """Refuse metrics of `target` and `stop` that are unknown, or whose direction is not clear.

    Args:
        metrics: the task's; None: unknown before the first evaluation.

    Raises:
        ConfigError: the message has the nearest name.
    """
    for where, name in experiment.named_metrics.items():
        if metrics is not None and name not in known(metrics):
            raise unknown_name("metric", name, known(metrics), where=where)
    target, stop = experiment.target, experiment.stop
    if target is not None and target.metric == primary.name and target.rises != primary.rises:
        better, bound = ("larger", "at_least") if primary.rises else ("smaller", "at_most")
        raise ConfigError(
            f"target: a {better} {primary.name} is better: give {bound}; got {target.words}."
        )
    if stop is not None and stop_metric(experiment, primary) is None:
        raise ConfigError(
            f"stop.mode: say which direction of {stop.metric!r} is better: max or min."
        )


def stop_metric(experiment: Experiment, primary: PrimaryMetric) -> PrimaryMetric | None:
    """Return the metric of `stop.patience`; None if its better direction is unknown."""
    stop, target = experiment.stop, experiment.target
    name = primary.name if stop is None or stop.metric is None else stop.metric
    if stop is not None and stop.mode is not None:
        return PrimaryMetric(name, stop.mode)
    if name == primary.name:
        return primary
    if target is not None and name == target.metric:
        return PrimaryMetric(name, "max" if target.rises else "min")
    return PrimaryMetric(name, MODES[name]) if name in MODES else None
