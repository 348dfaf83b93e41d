"""Statistics of repeats over seeds: means, paired ratios, the median run; never the best run.

Student's t interval is honest with few repeats; a percentile bootstrap of 3 would cover the mean
three times in four, not 19 in 20. A repeat without a value stays in `total`, so that it is visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt

import numpy as np

from raysync.results.collection import CollectedRun

CONFIDENCE = 0.95
LARGEST_LOG = 700.0  # the exponential of more is infinite


@dataclass(frozen=True)
class Estimate:
    mean: float | None  # None: no repeat has a value
    low: float | None  # None: fewer than two values
    high: float | None
    count: int  # repeats with a value
    total: int  # the number of all repeats

    @property
    def complete(self) -> bool:
        return self.count == self.total


def estimate(values: Sequence[float | None], confidence: float = CONFIDENCE) -> Estimate:
    """Estimate the mean of repeats, with its interval.

    Args:
        values: one a repeat; None, NaN and infinity are missing.
        confidence: the level of the interval, between 0 and 1.
    """
    present = [float(value) for value in values if value is not None and isfinite(value)]
    mean = float(np.mean(present)) if present else None
    if mean is None or len(present) < 2:
        return Estimate(mean, None, None, len(present), len(values))
    low, high = _interval(present, confidence)
    low, high = min(low, mean), max(high, mean)  # rounding must not shut the mean out
    return Estimate(mean, low, high, len(present), len(values))


def _interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    from scipy import stats  # slow to import

    error = np.std(values, ddof=1) / sqrt(len(values))
    if max(values) == min(values) or error == 0:
        return min(values), max(values)
    low, high = stats.t.interval(confidence, len(values) - 1, np.mean(values), error)
    return float(low), float(high)


def paired_difference(
    ours: Mapping[int, float | None],
    theirs: Mapping[int, float | None],
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Estimate the mean of ours - theirs (seed -> value) over common seeds, with its t interval.

    Pairs meet the same batches, jitter and faults, so a seed's effect on both cancels. `count` is
    the pairs with both values, `total` the common seeds.
    """
    return estimate(
        [None if a is None or b is None else a - b for a, b in _pairs(ours, theirs)], confidence
    )


def paired_ratio(
    ours: Mapping[int, float | None],
    theirs: Mapping[int, float | None],
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Estimate the geometric mean of ours / theirs over common seeds.

    The t interval is of the logarithms, for times and rates: values up to 0 are missing.
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
    return None if value is None else exp(min(value, LARGEST_LOG))


def _pairs(
    ours: Mapping[int, float | None], theirs: Mapping[int, float | None]
) -> list[tuple[float | None, float | None]]:
    return [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]


def median_run(
    runs: Sequence[CollectedRun],
    key: str = "final_accuracy",
    failed: int = 0,
    *,
    rises: bool = True,
) -> CollectedRun | None:
    """Return the middle run by its result; None: no runs, or a repeat without a record.

    LagTuner, section 5.2: "three independent runs ... median results based on test accuracy". A run
    without a result is worse than any with one; the median of an even number is the worse of two;
    of equals, the smaller seed is better.

    Args:
        runs: the repeats.
        key: in `summary.json`.
        failed: the number of repeats without a record.
        rises: whether more is better.
    """
    sign = 1.0 if rises else -1.0

    def rank(run: CollectedRun) -> tuple[float, int]:
        value = run.value(key)
        return (-inf if value is None else sign * value, -run.seed)

    ranked = [*[None] * failed, *sorted(runs, key=rank)]
    return ranked[(len(ranked) - 1) // 2] if ranked else None
