"""Rank the paradigms of a scenario: who is first, by how much, and how surely.

First is the paradigm with the largest share of repeats that met the target and, among equals, with
the shortest mean time. Its lead is *clear* if the 95 % interval of each paired ratio excludes 1; in
one pair of twenty, by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from raysync.results.collection import Collection, Criteria, by_seed
from raysync.results.columns import WHOLE_WORK, Measure, final_measure, target_text, time_measure
from raysync.results.statistics import Estimate, estimate, paired_difference, paired_ratio

ALIKE = 0.005
"""Two times are equal to a reader if the whole interval of their ratio is this close to 1."""

Sure = Literal["clear", "not clear", "one seed", "alone", "none"]
"""How sure the leader is: clearly, or why not."""


@dataclass(frozen=True)
class Ranked:
    """A paradigm in one scenario, by one measure."""

    paradigm: str
    value: Estimate
    by_seed: dict[int, float | None]

    @property
    def share(self) -> float:
        """The share of repeats with a value."""
        return self.value.count / self.value.total


@dataclass(frozen=True)
class PairwiseComparison:
    """A supposedly worse paradigm, against a better one."""

    other: Ranked
    """The supposedly worse one."""
    margin: Estimate
    """The ratio of its times or perplexities to the better one's, or its deficit otherwise."""
    equal: float
    """The margin of equals: 1 for a ratio, 0 for a difference."""

    @property
    def is_clear(self) -> bool:
        """Whether the other is worse by the whole interval, and visibly."""
        low = self.margin.low
        return low is not None and low > self.equal and not self.is_alike

    @property
    def is_alike(self) -> bool:
        """Whether both are equal to a reader."""
        ratios = (self.margin.mean, self.margin.low, self.margin.high)
        known = [ratio for ratio in ratios if ratio is not None]
        return bool(known) and self.equal == 1 and all(abs(ratio - 1) < ALIKE for ratio in known)


@dataclass(frozen=True)
class Leader:
    """The first paradigm by a measure, and how sure that is."""

    name: str
    """"": no run has a result."""
    sure: Sure
    doubtful: tuple[str, ...] = ()
    """Other paradigms that could be as good."""


@dataclass(frozen=True)
class Standings:
    """The paradigms of a scenario, ranked by one measure."""

    measure: Measure
    ranked: tuple[Ranked, ...]
    """By share of repeats with a value, then by mean; the best first."""

    @property
    def first(self) -> Ranked:
        return self.ranked[0]

    @cached_property
    def behind(self) -> tuple[PairwiseComparison, ...]:
        """The other paradigms against the first, as ranked."""
        return tuple(self.compare(self.first, other) for other in self.ranked[1:])

    @cached_property
    def leader(self) -> Leader:
        """The first paradigm, and how surely it leads.

        A clear lead includes paradigms with a value in fewer repeats: the mean of lucky repeats can
        be the smaller one.
        """
        if self.first.value.count == 0:
            return Leader("", "none")
        name = self.first.paradigm
        others = [versus for versus in self.behind if versus.other.value.count]
        doubtful = tuple(versus.other.paradigm for versus in others if not versus.is_clear)
        if not others:
            return Leader(name, "alone")
        if not doubtful:
            return Leader(name, "clear")
        no_interval = all(versus.margin.low is None for versus in others)
        return Leader(name, "one seed" if no_interval else "not clear", doubtful)

    def compare(self, better: Ranked, worse: Ranked) -> PairwiseComparison:
        """Compare two paradigms over common seeds."""
        if self.measure.compared_by == "ratio":
            return PairwiseComparison(worse, paired_ratio(worse.by_seed, better.by_seed), 1.0)
        large, small = (better, worse) if self.measure.rises else (worse, better)
        return PairwiseComparison(worse, paired_difference(large.by_seed, small.by_seed), 0.0)


@dataclass(frozen=True)
class Ranking:
    """The ranked paradigms of a scenario, for page, Markdown and terminal."""

    scenario: str
    criteria: Criteria
    to_target: Standings | None
    """By the time to the target; None: no target."""
    whole_work: Standings
    """By the time for the whole training."""
    final: Standings | None
    """By the model after the same work; None: none was trained."""
    statuses: Mapping[str, Counter[str]]
    """Paradigm -> number of repeats by status."""
    most_runs: int
    """The most records of one paradigm."""

    @property
    def times(self) -> Standings:
        """The ranking that decides: to the target or, if no repeat reached one, the whole work."""
        if self.to_target is None or self.to_target.first.value.count == 0:
            return self.whole_work
        return self.to_target

    @property
    def target(self) -> str:
        """The target in words; "" without one, or if no repeat reached it."""
        return target_text(self.criteria) if self.times is self.to_target else ""


def rank_all(collection: Collection) -> list[Ranking]:
    return [rank(collection, scenario) for scenario in collection.scenarios]


def rank(collection: Collection, scenario: str = "") -> Ranking:
    criteria, groups = collection.criteria(scenario), collection.scenarios[scenario]
    final = final_measure(criteria)
    return Ranking(
        scenario,
        criteria,
        to_target=(
            _standings(collection, scenario, time_measure(criteria)) if criteria.target else None
        ),
        whole_work=_standings(collection, scenario, WHOLE_WORK),
        final=None if final is None else _standings(collection, scenario, final),
        statuses={paradigm: collection.statuses(scenario, paradigm) for paradigm in groups},
        most_runs=max(map(len, groups.values()), default=0),
    )


def _standings(collection: Collection, scenario: str, measure: Measure) -> Standings:
    sign = -1.0 if measure.rises else 1.0
    ranked = []
    for paradigm, repeats in collection.scenarios[scenario].items():
        failed = len(collection.failures(scenario, paradigm))
        values = [*(run.value(measure.key) for run in repeats), *[None] * failed]
        ranked.append(Ranked(paradigm, estimate(values), by_seed(repeats, measure.key)))
    ranked.sort(key=lambda entry: (-entry.share, sign * (entry.value.mean or 0.0)))
    return Standings(measure, tuple(ranked))
