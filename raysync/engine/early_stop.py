"""Whether a run has learned enough, by its evaluations: the settings of `stop` about the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysync.config import Experiment
from raysync.core.journal import Evaluation
from raysync.core.metrics import MODES, PrimaryMetric


def stop_metric(experiment: Experiment, primary: PrimaryMetric) -> PrimaryMetric | None:
    """Return the metric of `stop.patience`, with its direction; None if the direction is unknown.

    Args:
        experiment: has the settings `stop` and `target`.
        primary: the primary metric of the task.
    """
    stop, target = experiment.stop, experiment.target
    name = primary.name if stop is None or stop.metric is None else stop.metric
    if stop is not None and stop.mode is not None:
        return PrimaryMetric(name, stop.mode)
    if name == primary.name:
        return primary
    if target is not None and name == target.metric:
        return PrimaryMetric(name, "max" if target.rises else "min")
    return PrimaryMetric(name, MODES[name]) if name in MODES else None


class EarlyStop:
    """Takes in the evaluations of a run, and says when it should end."""

    def __init__(self, experiment: Experiment, primary: PrimaryMetric) -> None:
        """
        Args:
            experiment: has the settings `stop` and `target`.
            primary: the primary metric of the task.
        """
        self._stop, self._target = experiment.stop, experiment.target
        self._metric = stop_metric(experiment, primary) or primary
        self._best: float | None = None
        self._version = -1
        self._not_better = 0
        """The number of evaluations in a row that were not better than the best before them."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs of it, JSON-native."""
        return {"best": self._best, "version": self._version, "not_better": self._not_better}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self._best, self._version = state["best"], state["version"]
        self._not_better = state["not_better"]

    def reason(self, evaluation: Evaluation) -> str:
        """Take in an evaluation, and say in a clause why the run should end; "" if it should not.
        Several marks that were passed at once are one evaluation.
        """
        stop = self._stop
        if stop is None or evaluation.version == self._version:
            return ""
        self._version = evaluation.version
        if stop.at_target and self._target is not None:
            value = evaluation.value(self._target.metric)
            if self._target.is_met(value):
                return f"the target is met: {self._target.metric} is {value:.6g}"
        if stop.patience is None or self._is_better(evaluation, stop.min_delta):
            self._not_better = 0
            return ""
        self._not_better += 1
        if self._not_better < stop.patience:
            return ""
        by = f" by more than {stop.min_delta:g}" if stop.min_delta else ""
        count = f"{stop.patience} evaluations in a row" if stop.patience > 1 else "an evaluation"
        return f"{self._metric.name} was not better than {self._best:.6g}{by} for {count}"

    def _is_better(self, evaluation: Evaluation, min_delta: float) -> bool:
        value, best = evaluation.value(self._metric.name), self._best
        assert value is not None, "an evaluation without the metric of stop"
        if best is not None:
            demanded = best + min_delta if self._metric.rises else best - min_delta
            if not self._metric.is_better(value, demanded):
                return False
        self._best = value
        return True
