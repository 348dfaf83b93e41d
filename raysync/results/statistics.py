"""Repeats over seeds in numbers: means, pairs, the median run; never the best one.

*Interval.* The default is Student's t interval of the mean: exact where repeats scatter normally,
and honest with few of them: with 3 seeds it is 4.3 standard errors wide each way. A percentile
bootstrap of 3 values can draw only 10 different samples, never leaves [min, max], and covers the
mean about three times in four instead of 19 in 20; it is offered (`method="bootstrap"`, BCa) for 10
repeats or more, where nothing normal need be assumed.

*Missing.* A repeat without a value (target not reached, diverged, failed) stays in `total`: a mean
over those that have one says over how many. Such a mean is of the lucky ones; whoever shows it must
show `count` of `total` too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt
from typing import Literal

import numpy as np
from scipy import stats

from raysync.results.collection import Run

CONFIDENCE = 0.95
Method = Literal["t", "bootstrap"]
BOOTSTRAP_SAMPLES = 9_999
BOOTSTRAP_SEED = 0


@dataclass(frozen=True)
class Estimate:
    """A mean with its confidence interval."""

    mean: float | None
    """None: nobody had a value."""
    low: float | None
    """None: fewer than two values, so no interval."""
    high: float | None
    count: int
    """Repeats with a value."""
    total: int
    """Repeats."""

    @property
    def complete(self) -> bool:
        """Whether every repeat had a value."""
        return self.count == self.total


def estimate(
    values: Sequence[float | None], confidence: float = CONFIDENCE, method: Method = "t"
) -> Estimate:
    """The mean of repeats, with its interval.

    Args:
        values: one a repeat; None, NaN and infinity: it has none.
        confidence: of the interval, between 0 and 1.
        method: see above. A bootstrap of fewer than 10 values that are not all alike is a t
            interval after all.
    """
    there = [float(value) for value in values if value is not None and isfinite(value)]
    mean = float(np.mean(there)) if there else None
    if mean is None or len(there) < 2:
        return Estimate(mean, None, None, len(there), len(values))
    low, high = _interval(there, confidence, method)
    return Estimate(
        mean, min(low, mean), max(high, mean), len(there), len(values)
    )  # rounding must not shut the mean out


def _interval(values: Sequence[float], confidence: float, method: Method) -> tuple[float, float]:
    error = np.std(values, ddof=1) / sqrt(len(values))
    if max(values) == min(values) or error == 0:
        return min(values), max(values)
    if method == "bootstrap" and len(values) >= 10:
        drawn = stats.bootstrap(
            (sorted(values),),
            np.mean,
            confidence_level=confidence,
            n_resamples=BOOTSTRAP_SAMPLES,
            rng=np.random.default_rng(BOOTSTRAP_SEED),
        ).confidence_interval
        return float(drawn.low), float(drawn.high)
    low, high = stats.t.interval(confidence, len(values) - 1, np.mean(values), error)
    return float(low), float(high)


def paired_difference(
    ours: Mapping[int, float | None],
    theirs: Mapping[int, float | None],
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Mean of ours - theirs over the seeds that both have, with its t interval.

    Pairs meet the same batches, jitter and faults, so what a seed does to both falls out.

    Args:
        ours: seed -> value.
        theirs: the same of another paradigm.
        confidence: of the interval.

    Returns:
        `count`: pairs in which both have a value; `total`: seeds that both have.
    """
    return estimate(
        [None if a is None or b is None else a - b for a, b in _pairs(ours, theirs)], confidence
    )


def paired_ratio(
    ours: Mapping[int, float | None],
    theirs: Mapping[int, float | None],
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Geometric mean of ours / theirs over the seeds that both have; the t interval is of the
    logarithms.

    For times and rates. A value that is not above 0 counts as none. See `paired_difference`.
    """
    logs = estimate(
        [
            None if a is None or b is None or a <= 0 or b <= 0 else log(a) - log(b)
            for a, b in _pairs(ours, theirs)
        ],
        confidence,
    )
    mean, low, high = (_exp(value) for value in (logs.mean, logs.low, logs.high))
    return Estimate(mean, low, high, logs.count, logs.total)


def _exp(value: float | None) -> float | None:
    return (
        None if value is None else exp(min(value, 700.0))
    )  # two wildly different seeds: a float's limit


def _pairs(
    ours: Mapping[int, float | None], theirs: Mapping[int, float | None]
) -> list[tuple[float | None, float | None]]:
    return [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]


def median_run(runs: Sequence[Run], key: str = "final_accuracy", lost: int = 0) -> Run | None:
    """The run in the middle by its result; None of no runs, or if one that left no record is in the
    middle.

    Source: LagTuner, section 5.2: "three independent runs ... median results based on test
    accuracy". A run without a result (diverged, failed) counts as worse than any with one; of an
    even number the worse of the two in the middle; of equals the smaller seed counts as better.

    Args:
        runs: repeats.
        key: of `summary.json`: an accuracy, where more is better, or else (a loss, a perplexity,
            seconds) where less is.
        lost: repeats that left no record.
    """
    sign = 1.0 if key.endswith("_accuracy") else -1.0

    def rank(run: Run) -> tuple[float, int]:
        value = run.value(key)
        return (-inf if value is None else sign * value, -run.seed)

    ranked = [*[None] * lost, *sorted(runs, key=rank)]
    return ranked[(len(ranked) - 1) // 2] if ranked else None
