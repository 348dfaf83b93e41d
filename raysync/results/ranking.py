"""Which paradigm is first in a scenario, by how much, and how surely; `sentences` says it in words.

The leader is the paradigm that met the target in the largest share of its repeats and, among
equals, in the shortest mean time. It is *clearly* ahead of another where the 95 % interval of their
paired ratio over common seeds leaves out 1, and it leads a scenario clearly where it is so ahead of
each other. Each of these intervals is for one pair alone: with many paradigms, one in twenty such
statements is expected to be chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from raysync.results.collection import Collection, Success, by_seed
from raysync.results.columns import WHOLE_WORK, Measure, final_measure, target_text, time_measure
from raysync.results.statistics import Estimate, estimate, paired_difference, paired_ratio

ALIKE = 0.005
"""Two times are the same to a reader, however sure the difference is, if their ratio and its whole
interval are closer to 1 than this."""

Sure = Literal["clear", "not clear", "one seed", "alone", "none"]
"""How sure it is which paradigm leads: clearly, or why not."""


@dataclass(frozen=True)
class Ranked:
    """A paradigm in one scenario, by one measure."""

    paradigm: str
    value: Estimate
    seeds: dict[int, float | None]

    @property
    def share(self) -> float:
        """The share of its repeats that have a value."""
        return self.value.count / self.value.total


@dataclass(frozen=True)
class PairwiseComparison:
    """A paradigm against another one that it is thought to be worse than."""

    other: Ranked
    """The paradigm that is thought to be worse."""
    by: Estimate
    """The ratio of its times or perplexities to those of the better one; of other metrics, by how
    much they are worse."""
    equal: float
    """The value that `by` has between equals: 1 for a ratio, 0 for a difference."""

    @property
    def clear(self) -> bool:
        """Whether it is worse: by the whole interval, and by more than a reader cares about."""
        return self.by.low is not None and self.by.low > self.equal and not self.alike

    @property
    def alike(self) -> bool:
        """Whether both are the same to a reader."""
        ends = [end for end in (self.by.mean, self.by.low, self.by.high) if end is not None]
        return bool(ends) and self.equal == 1 and all(abs(end - 1) < ALIKE for end in ends)


@dataclass(frozen=True)
class Leader:
    """The paradigm that is first by a measure, and how surely."""

    name: str
    """"" where no run has a result."""
    sure: Sure
    doubtful: tuple[str, ...] = ()
    """Other paradigms that could be as good."""


@dataclass(frozen=True)
class Standings:
    """The paradigms of a scenario by one measure."""

    measure: Measure
    ranked: tuple[Ranked, ...]
    """The best first: the largest share of repeats with a value, then the best mean."""

    @property
    def first(self) -> Ranked:
        """The best paradigm."""
        return self.ranked[0]

    @cached_property
    def behind(self) -> tuple[PairwiseComparison, ...]:
        """The others against the first one, in the order of the ranking."""
        return tuple(self.compare(self.first, other) for other in self.ranked[1:])

    @cached_property
    def leader(self) -> Leader:
        """The first paradigm, and how surely it is.

        It leads clearly where it is ahead of each other paradigm that has a value, even of those
        that have one in fewer of their repeats: a mean over the lucky repeats can be the smaller
        one.
        """
        if self.first.value.count == 0:
            return Leader("", "none")
        name = self.first.paradigm
        others = [versus for versus in self.behind if versus.other.value.count]
        doubtful = tuple(versus.other.paradigm for versus in others if not versus.clear)
        if not others:
            return Leader(name, "alone")
        if not doubtful:
            return Leader(name, "clear")
        no_interval = all(versus.by.low is None for versus in others)
        return Leader(name, "one seed" if no_interval else "not clear", doubtful)

    def compare(self, better: Ranked, worse: Ranked) -> PairwiseComparison:
        """Compare two paradigms over their common seeds."""
        if self.measure.compared_by == "ratio":
            return PairwiseComparison(worse, paired_ratio(worse.seeds, better.seeds), 1.0)
        large, small = (better, worse) if self.measure.rises else (worse, better)
        return PairwiseComparison(worse, paired_difference(large.seeds, small.seeds), 0.0)


@dataclass(frozen=True)
class Ranking:
    """The standings of the paradigms of a scenario: computed once, and handed to page, Markdown and
    terminal.
    """

    scenario: str
    success: Success
    """What the scenario's runs are judged by."""
    to_target: Standings | None
    """The standings by the time to the target; None where no target was given."""
    whole_work: Standings
    """The standings by the time for the whole training."""
    final: Standings | None
    """The standings by the model after the same work; None where none was trained."""
    statuses: Mapping[str, Counter[str]]
    """Paradigm -> how its repeats ended -> how many of them."""
    most_runs: int
    """The records of the paradigm that has the most of them."""

    @property
    def times(self) -> Standings:
        """The standings that decide: at the target, or with the whole work if no repeat of any
        paradigm reached a target.
        """
        if self.to_target is None or self.to_target.first.value.count == 0:
            return self.whole_work
        return self.to_target

    @property
    def target(self) -> str:
        """The target in words; "" where there is none, or where no repeat reached it."""
        return target_text(self.success) if self.times is self.to_target else ""


def rank_all(collection: Collection) -> list[Ranking]:
    """Rank the paradigms of every scenario, in the collection's order."""
    return [rank(collection, scenario) for scenario in collection.scenarios()]


def rank(collection: Collection, scenario: str = "") -> Ranking:
    """Rank the paradigms of a scenario."""
    success, groups = collection.success(scenario), collection.scenarios()[scenario]
    final = final_measure(success)
    return Ranking(
        scenario,
        success,
        to_target=(
            _standings(collection, scenario, time_measure(success)) if success.target else None
        ),
        whole_work=_standings(collection, scenario, WHOLE_WORK),
        final=None if final is None else _standings(collection, scenario, final),
        statuses={paradigm: collection.statuses(scenario, paradigm) for paradigm in groups},
        most_runs=max(map(len, groups.values()), default=0),
    )


def _standings(collection: Collection, scenario: str, measure: Measure) -> Standings:
    sign = -1.0 if measure.rises else 1.0
    ranked = []
    for paradigm, repeats in collection.scenarios()[scenario].items():
        lost = len(collection.failures(scenario, paradigm))
        values = [*(run.value(measure.key) for run in repeats), *[None] * lost]
        ranked.append(Ranked(paradigm, estimate(values), by_seed(repeats, measure.key)))
    ranked.sort(key=lambda entry: (-entry.share, sign * (entry.value.mean or 0.0)))
    return Standings(measure, tuple(ranked))
