"""Rank the paradigms of a scenario: who is first, by how much, and how surely.

`comparison` says which runs are compared, and by what. First is the paradigm with the largest share
of repeats that have a value and, among equals, with the best mean. Its lead is *clear* if the 95 %
interval of each paired ratio excludes 1; in one pair of twenty, by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

from raysync.results.collection import CollectedRun, Collection, Criteria
from raysync.results.columns import WHOLE_WORK, Column, final_measure, target_text, time_measure
from raysync.results.comparison import Compared, Repeat, by_quality, by_target, by_whole_work
from raysync.results.learning_rates import RateChoice, rate_choices
from raysync.results.statistics import Estimate, estimate, paired_difference, paired_ratio

# the confidence whose interval lies within a margin if both one-sided tests of 5 % reject
TWO_TESTS = 0.90
# two times are equal to a reader if the whole interval of their ratio is this close to 1
ALIKE = 0.005

# how sure the leader is: clearly; since no other has a value; or why not
Sure = Literal["clear", "only", "not clear", "side by side", "one seed", "alone", "none"]


@dataclass(frozen=True)
class Ranked:
    """A paradigm in one scenario, by one measure."""

    paradigm: str
    value: Estimate
    # seed -> value of each repeat that is compared; None: it has none
    by_seed: dict[int, float | None]
    # the same over the seeds that all paradigms have in common: it decides the place
    judged: Estimate

    @property
    def share(self) -> float:
        """The share of compared repeats with a value."""
        return self.judged.count / self.judged.total if self.judged.total else 0.0

    @property
    def mean(self) -> float:
        """The mean that decides its place; 0: there is none."""
        return self.judged.mean or 0.0


@dataclass(frozen=True)
class PairwiseComparison:
    """A supposedly worse paradigm, against a better one."""

    other: Ranked  # the supposedly worse one
    # the ratio of its times or perplexities to the better one's, or its deficit otherwise
    margin: Estimate
    equal: float  # the margin of equals: 1 for a ratio, 0 for a difference
    # the largest distance from equality in the 90 % interval; None: too few common seeds
    distance: float | None = None

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

    name: str  # "": no run has a result
    sure: Sure
    doubtful: tuple[str, ...] = ()  # other paradigms that could be as good


@dataclass(frozen=True)
class Standings:
    """The paradigms of a scenario, ranked by one measure."""

    measure: Column
    ranked: tuple[Ranked, ...]  # by share of repeats with a value, then by mean; the best first
    compared: Compared
    # whether runs measured each other, as they shared cores on a real clock
    share_cores: bool = False
    margin: float | None = None  # values that differ by less are equally good; None: nobody said

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
            have_missed = any(versus.other.by_seed for versus in self.behind)
            return Leader(name, "only" if have_missed else "alone")
        if not doubtful:
            return Leader(name, "side by side" if self.share_cores else "clear")
        no_interval = all(versus.margin.low is None for versus in others)
        return Leader(name, "one seed" if no_interval else "not clear", doubtful)

    def compare(self, better: Ranked, worse: Ranked) -> PairwiseComparison:
        """Compare two paradigms over common seeds."""
        compare, equal, pair = paired_difference, 0.0, (better.by_seed, worse.by_seed)
        if self.measure.compared_by == "ratio":
            compare, equal = paired_ratio, 1.0
        if equal or not self.measure.rises:
            pair = (worse.by_seed, better.by_seed)
        narrow = compare(*pair, TWO_TESTS)
        ends = [end for end in (narrow.low, narrow.high) if end is not None]
        distance = max((abs(end - equal) for end in ends), default=None)
        return PairwiseComparison(worse, compare(*pair), equal, distance)

    @property
    def equally_good(self) -> tuple[str, ...]:
        """The paradigms behind the first that are as good within the margin.

        By two one-sided tests of 5 %; each repeat has a value.
        """
        margin = self.margin or 0.0
        return tuple(
            versus.other.paradigm
            for versus in self.behind
            if versus.distance is not None and versus.distance < margin and versus.margin.complete
        )


@dataclass(frozen=True)
class Ranking:
    """The ranked paradigms of a scenario, for page, Markdown and terminal."""

    scenario: str
    criteria: Criteria
    to_target: Standings | None  # by the time to the target; None: no target
    whole_work: Standings  # by the time for the whole training
    final: Standings | None  # by the model after the same work; None: none was trained
    # the runs that shared cores with others on a real clock
    share_cores: Sequence[CollectedRun] = ()
    # the learning rates of paradigms with several: only the row with the best one is ranked
    rates: Sequence[RateChoice] = ()

    @property
    def times(self) -> Standings:
        """The ranking that decides: to the target or, if no repeat reached one, the whole work."""
        if self.to_target is None or self.to_target.first.value.count == 0:
            return self.whole_work
        return self.to_target

    @property
    def deciding(self) -> Standings:
        """By time or, if no run did the whole work, by the model."""
        if self.times.first.value.count == 0 and self.final is not None:
            return self.final
        return self.times

    @property
    def target(self) -> str:
        """The target in words; "" without one, or if no repeat reached it."""
        return target_text(self.criteria) if self.times is self.to_target else ""


def rank_all(collection: Collection) -> list[Ranking]:
    return [rank(collection, scenario) for scenario in collection.scenarios]


def rank(collection: Collection, scenario: str = "") -> Ranking:
    criteria, groups = collection.criteria(scenario), collection.scenarios[scenario]
    final = final_measure(criteria)
    rates = rate_choices(groups, criteria)
    worse = {label for choice in rates for label in choice.labels.values() if label != choice.label}
    every = _repeats(collection, scenario, criteria)
    repeats = [repeat for repeat in every if repeat.paradigm not in worse]
    share_cores = [run for runs in groups.values() for run in runs if run.shared_share]
    by_time = partial(_standings, repeats, share_cores=bool(share_cores))
    return Ranking(
        scenario,
        criteria,
        to_target=by_time(time_measure(criteria), by_target) if criteria.target else None,
        whole_work=by_time(WHOLE_WORK, by_whole_work),
        final=None
        if final is None
        else _standings(repeats, final, by_quality, margin=criteria.margin),
        share_cores=share_cores,
        rates=rates,
    )


def _repeats(collection: Collection, scenario: str, criteria: Criteria) -> list[Repeat]:
    """Return the runs of a scenario as the rules of `comparison` see them."""
    final = criteria.final_key
    found = []
    for paradigm, runs in collection.scenarios[scenario].items():
        found += [
            Repeat(
                paradigm=paradigm,
                seed=run.seed,
                end=run.end,
                target_s=None if criteria.target is None else run.value(criteria.time_key),
                final=None if final is None else run.value(final),
                limit=run.limit,
            )
            for run in runs
        ]
        found += [
            Repeat(paradigm, trial.seed, trial.end)
            for trial in collection.failures(scenario, paradigm)
        ]
    return found


def _standings(
    repeats: Sequence[Repeat],
    measure: Column,
    compare: Callable[[Sequence[Repeat]], Compared],
    *,
    share_cores: bool = False,
    margin: float | None = None,
) -> Standings:
    compared = compare(repeats)
    common = compared.common_seeds
    totals = Counter(repeat.paradigm for repeat in repeats)
    ranked = []
    for paradigm, values in compared.values.items():
        left_out = [None] * (totals[paradigm] - len(values))
        judged = estimate([value for seed, value in values.items() if seed in common])
        value = estimate([*values.values(), *left_out])
        ranked.append(Ranked(paradigm, value, dict(values), judged))
    sign = -1.0 if measure.rises else 1.0
    ranked.sort(key=lambda entry: (-entry.share, sign * entry.mean))
    return Standings(
        measure=measure,
        ranked=tuple(ranked),
        compared=compared,
        share_cores=share_cores,
        margin=margin,
    )
