"""A trial's reports to Ray Tune, one for each evaluation."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import Any

from ray import tune

from raysync.core.journal import Evaluation
from raysync.core.metrics import LARGEST_EXPONENT, PERPLEXITY
from raysync.record.measures import Measures
from raysync.running.stop_request import RunCut
from raysync.tracking.observers import TrackerNotice

# measures in a report, beside the metrics of the evaluation
REPORTED = (
    "progress",
    "seconds",
    "samples",
    "throughput_samples_per_s",
    "wait_fraction",
    "staleness_max",
    "lead_max",
)


NOTICE = "notice"  # the key of sentences for the user of the sweep


class TuneReports:
    """Reports each evaluation to Tune; without evaluations, the end of the run."""

    def __init__(self, *, timing_only: bool, ended_by: Callable[[], str]) -> None:
        """
        Args:
            ended_by: returns the setting of the sweep that ends the trial, or `signal`.
        """
        self._timing_only, self._ended_by = timing_only, ended_by
        self._reported = 0
        self._last: dict[str, Any] = {}
        self._notices: list[str] = []

    def watch(self, measures: Measures) -> None:
        for evaluation in measures.evaluations[self._reported :]:
            self._report({**report_of(measures), **report_of_evaluation(evaluation, measures)})
        self._reported = len(measures.evaluations)
        if self._timing_only and measures.ended is not None:
            self._report(report_of(measures))

    def notify(self, text: str) -> None:
        """Show a sentence in the trial's own output; trackers' sentences also reach the sweep."""
        print(text)
        if isinstance(text, TrackerNotice):
            self._notices.append(text)

    def close(self) -> None:
        """Report the notices of the run's end."""
        if self._notices and self._last:
            self._report(self._last)

    def _report(self, report: dict[str, Any]) -> None:
        self._last = report
        notice, self._notices = " ".join(self._notices), []
        try:
            tune.report(report | ({NOTICE: notice} if notice else {}))
        except SystemExit:  # by which Tune ends a trial
            raise RunCut(self._ended_by()) from None


def report_of(measures: Measures) -> dict[str, float]:
    return {name: getattr(measures, name) for name in REPORTED}


def report_of_evaluation(evaluation: Evaluation, measures: Measures) -> dict[str, float]:
    """Describe an evaluation, with its own time: several can be reported together."""
    perplexity = evaluation.value(PERPLEXITY.name)
    assert perplexity is not None, "an evaluation without a loss"
    return {
        **evaluation.metrics,
        PERPLEXITY.name: min(perplexity, exp(LARGEST_EXPONENT)),
        "progress": evaluation.progress,
        "samples": round(evaluation.progress * measures.workload_samples),
        "seconds": max(0.0, evaluation.at - (measures.started_at or 0.0)),
    }
