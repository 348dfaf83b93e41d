"""Statistics of repeats over seeds: means, paired ratios, the median run; never the best run.

*Interval.* The default is Student's t interval of the mean. It is exact where repeats scatter
normally, and honest with few of them: with 3 seeds it is 4.3 standard errors wide each way. A
percentile bootstrap of 3 values can draw only 10 different samples, never leaves [min, max], and
covers the mean about three times in four instead of 19 in 20; it is offered (`method="bootstrap"`,
BCa) for 10 repeats or more, and needs no normal distribution.

*Missing.* A repeat without a value (target not reached, diverged, failed) stays in `total`. A mean
over the others is a mean of the lucky ones, so it is always shown with `count` of `total`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt
from typing import Literal

import numpy as np
from scipy import stats

from raysync.results.collection import CollectedRun

CONFIDENCE = 0.95
Method = Literal["t", "bootstrap"]
BOOTSTRAP_SAMPLES = 9_999
BOOTSTRAP_SEED = 0


@dataclass(frozen=True)
class Estimate:
    """A mean with its confidence interval."""

    mean: float | None
    """None where no repeat had a value."""
    low: float | None
    """None where fewer than two values give no interval."""
    high: float | None
    count: int
    """The repeats with a value."""
    total: int
    """All repeats."""

    @property
    def complete(self) -> bool:
        """Whether every repeat had a value."""
        return self.count == self.total


def estimate(
    values: Sequence[float | None], confidence: float = CONFIDENCE, method: Method = "t"
) -> Estimate:
    """Estimate the mean of repeats, with its interval.

    Args:
        values: one a repeat; None, NaN and infinity mean that it has none.
        confidence: the level of the interval, between 0 and 1.
        method: see above. With fewer than 10 values, "bootstrap" gives a t interval, too.
    """
    present = [float(value) for value in values if value is not None and isfinite(value)]
    mean = float(np.mean(present)) if present else None
    if mean is None or len(present) < 2:
        return Estimate(mean, None, None, len(present), len(values))
    low, high = _interval(present, confidence, method)
    low, high = min(low, mean), max(high, mean)  # rounding must not shut the mean out
    return Estimate(mean, low, high, len(present), len(values))


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
    """Estimate the mean of ours - theirs over the seeds that both have, with its t interval.

    Pairs meet the same batches, jitter and faults, so the effect that a seed has on both cancels.

    Args:
        ours: seed -> value.
        theirs: the same for another paradigm.
        confidence: the level of the interval.

    Returns:
        The estimate; `count` is the pairs in which both have a value, `total` the common seeds.
    """
    return estimate(
        [None if a is None or b is None else a - b for a, b in _pairs(ours, theirs)], confidence
    )


def paired_ratio(
    ours: Mapping[int, float | None],
    theirs: Mapping[int, float | None],
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Estimate the geometric mean of ours / theirs over the seeds that both have, with the t
    interval of the logarithms.

    This is for times and rates: a value that is not above 0 counts as none. See
    `paired_difference`.
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
    # two seeds that differ wildly reach the limit of a float
    return None if value is None else exp(min(value, 700.0))


def _pairs(
    ours: Mapping[int, float | None], theirs: Mapping[int, float | None]
) -> list[tuple[float | None, float | None]]:
    return [(ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]


def median_run(
    runs: Sequence[CollectedRun], key: str = "final_accuracy", lost: int = 0, *, rises: bool = True
) -> CollectedRun | None:
    """Return the run in the middle by its result; None if there are no runs, or if a repeat without
    a record is in the middle.

    Source: LagTuner, section 5.2: "three independent runs ... median results based on test
    accuracy". A run without a result (diverged, failed) counts as worse than any with one; of an
    even number the worse of the two in the middle; of equals the smaller seed counts as better.

    Args:
        runs: the repeats.
        key: in `summary.json`.
        lost: how many repeats left no record.
        rises: whether more of it is better.
    """
    sign = 1.0 if rises else -1.0

    def rank(run: CollectedRun) -> tuple[float, int]:
        value = run.value(key)
        return (-inf if value is None else sign * value, -run.seed)

    ranked = [*[None] * lost, *sorted(runs, key=rank)]
    return ranked[(len(ranked) - 1) // 2] if ranked else None
