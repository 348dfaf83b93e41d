"""Bootstrap intervals over blocks of simulated time.

What varies here is time: another hour of the same cluster would have had other slow steps. Steps
are neither independent of the step before (a slow node is slow for a while) nor of other ranks
(they share it), so single numbers must not be resampled. Blocks of time keep both. They are much
longer than what a paradigm remembers, so they are taken to be independent of each other (Carlstein
1986), and are drawn with replacement, each phase's by themselves.

Blocks are those of the *simulated* run. Resampling blocks of the trace and simulating each sample
again would answer the same question; a thousand samples would take a thousand times as long, and a
trace that is pieced together has seams.

A percentile interval of few values is too narrow: of 6 blocks it covers the mean 86 times in 100,
where Student's t covers it 95 times. It is expanded by what distinguishes the two (Hesterberg 2015,
"What teachers should know about the bootstrap"): percentiles further out are taken.

What the intervals do not know: whether that hour was a typical one. The largest lead and staleness
have none, since the largest value of a longer run is larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from scipy import stats

from raysync.predict.simulation import Blocks

CONFIDENCE = 0.95
RESAMPLES = 2_000
FEWEST = 5  # fewer blocks have no interval


@dataclass(frozen=True)
class Interval:
    """A value with the bootstrap interval of its ratio, where there is one."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def is_wide(self) -> bool:
        """Whether it is wider than its value."""
        return self.low is not None and self.high is not None and self.high - self.low > self.value

    def times(self, factor: float) -> Interval:
        """Return the same in another unit."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return Interval(self.value * factor, low, high)


def ratio(value: float, blocks: Blocks | None, above: str, below: str) -> Interval:
    """Return the expanded percentile interval (95 %) of a ratio of two sums over the blocks.

    Args:
        value: the ratio of the whole run.
        blocks: the sums of the run.
        above: the field of `Blocks` that is the numerator.
        below: the field that is the denominator.
    """
    if blocks is None or len(blocks.seconds) < FEWEST:
        return Interval(value)
    numerators, denominators = getattr(blocks, above), getattr(blocks, below)
    phases = [np.flatnonzero(blocks.phase == phase) for phase in np.unique(blocks.phase)]

    def of_sample(*drawn: Any, axis: int = -1) -> Any:
        chosen = np.concatenate(drawn, axis=axis)
        return numerators[chosen].sum(axis=axis) / denominators[chosen].sum(axis=axis)

    drawn = stats.bootstrap(
        [phase if len(phase) > 1 else np.repeat(phase, 2) for phase in phases],
        of_sample,
        n_resamples=RESAMPLES,
        confidence_level=_expanded_level(len(numerators)),
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Interval(value, min(float(drawn.low), value), max(float(drawn.high), value))


def _expanded_level(count: int) -> float:
    """Return the level of percentiles that makes an interval of so many values one of
    `CONFIDENCE`.
    """
    wide = sqrt(count / (count - 1)) * stats.t.ppf((1 + CONFIDENCE) / 2, count - 1)
    return float(2 * stats.norm.cdf(wide) - 1)
