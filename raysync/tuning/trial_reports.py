"""A trial's reports to Ray Tune, one for each evaluation."""

from __future__ import annotations

from math import exp

from ray import tune

from raysync.core.journal import Evaluation
from raysync.core.metrics import LARGEST_EXPONENT, PERPLEXITY
from raysync.record.measures import Measures

# the measures that a report has beside the metrics of the evaluation
REPORTED = (
    "progress",
    "seconds",
    "samples",
    "throughput_samples_per_s",
    "wait_fraction",
    "staleness_max",
    "lead_max",
)


class TuneReports:
    """Reports each evaluation to Tune; without evaluations, the end of the run."""

    def __init__(self, *, timing_only: bool) -> None:
        self._timing_only = timing_only
        self._reported = 0

    def watch(self, measures: Measures) -> None:
        for evaluation in measures.evaluations[self._reported :]:
            tune.report({**report_of(measures), **report_of_evaluation(evaluation, measures)})
        self._reported = len(measures.evaluations)
        if self._timing_only and measures.ended is not None:
            tune.report(report_of(measures))


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
