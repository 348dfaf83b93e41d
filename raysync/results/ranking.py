"""The answer in a sentence or two, with its uncertainty.

The leader is the paradigm that met the target in the largest share of its repeats and, among
equals, in the shortest mean time. It is *clearly* ahead of another where the 95 % interval of their
paired ratio over common seeds leaves out 1, and it leads a scenario clearly where it is so ahead of
each other. These intervals are of one pair at a time: with many paradigms, one in twenty such
statements is expected to be chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from raysync.results.collection import Collection, Run, Success
from raysync.results.columns import (
    Measure,
    final_measure,
    interval_text,
    ratio_text,
    target_text,
    time_measure,
)
from raysync.results.statistics import Estimate, estimate, paired_difference, paired_ratio
from raysync.results.tables import by_seed

ALIKE = 0.005
"""Times that differ by less, all of the interval, are the same to a reader, however sure the
difference is."""

Sure = Literal["at the target", "with the work", "not clear", "one seed", "alone", "none"]
"""How sure it is who leads a scenario: clearly, by one of two measures, or why that is not
clear."""
CLEARLY: dict[Sure, str] = {
    "at the target": "is clearly the first at the target",
    "with the work": "is clearly the first with the whole work",
}
WHY_NOT: dict[Sure, str] = {
    "not clear": "the leaders cannot be told apart",
    "alone": "only one paradigm has a result",
    "one seed": "fewer than two seeds are common, so chance cannot be ruled out",
    "none": "there is no result",
}


@dataclass(frozen=True)
class Ranked:
    """A paradigm in one scenario, by one measure."""

    paradigm: str
    value: Estimate
    seeds: dict[int, float | None]

    @property
    def share(self) -> float:
        """Of the repeats, that have a value."""
        return self.value.count / self.value.total


@dataclass(frozen=True)
class Versus:
    """The leader against another: other / leader, of times and perplexities; leader - other, of
    accuracies.
    """

    other: Ranked
    by: Estimate
    equal: float
    """What `by` is of equals: 1 or 0."""

    @property
    def clear(self) -> bool:
        """Whether the other is worse: all of the interval, and by more than a reader cares for."""
        return self.by.low is not None and self.by.low > self.equal and not self.alike

    @property
    def alike(self) -> bool:
        """Whether both are the same to a reader."""
        ends = [end for end in (self.by.mean, self.by.low, self.by.high) if end is not None]
        return bool(ends) and self.equal == 1 and all(abs(end - 1) < ALIKE for end in ends)


@dataclass(frozen=True)
class Leader:
    """The paradigm that is first in a scenario, and how surely."""

    name: str
    """"" where no run has a result."""
    sure: Sure
    target: str = ""
    """The target in words; "" where there is none, or where no repeat reached it."""
    doubtful: tuple[str, ...] = ()
    """Others that may be as fast."""


def answers(collection: Collection) -> dict[str, str]:
    """Scenario -> its answer."""
    return {scenario: answer(collection, scenario) for scenario in collection.scenarios()}


def answer(collection: Collection, scenario: str = "") -> str:
    """Which paradigm reaches the target first, by how much, at what accuracy; or why that cannot be
    said.

    Without a target, and where none reached it: who is best after the same work, and who is done
    with it first.
    """
    success, groups = collection.success(scenario), collection.scenarios()[scenario]
    final = final_measure(success)
    times = standings(collection, scenario, time_measure(success))
    sentences = []
    if success.target_kind is not None and times and times[0].value.count == 0:
        total = sum(one.value.total for one in times)
        sentences.append(f"No repeat reached {target_text(success)} (0 of {total}).")
        success = Success(success.quality, None, None)
        times = standings(collection, scenario, time_measure(success))
    elif success.target_kind is None and final is not None:
        sentences.append("No target was given.")
    if success.target_kind is not None:
        sentences += [_first(success, times), _partial(success, times)]
        sentences += (
            []
            if final is None
            else [_quality_of(times[0], standings(collection, scenario, final), final)]
        )
    else:
        sentences += [] if final is None else [_best(standings(collection, scenario, final), final)]
        sentences.append(_first(success, times))
    sentences += [_faults(collection, scenario), _seeds(groups)]
    return " ".join(filter(None, sentences))


def overall(collection: Collection) -> str:
    """In a line, never more than the sentences below it say.

    Of one scenario: who is first at the target, and how surely. Of several: who is clearly first in
    how many of them, and what keeps the others from having a leader.
    """
    scenarios = list(collection.scenarios())
    if len(scenarios) == 1:
        return _headline(leader(collection, scenarios[0]))
    found = [leader(collection, scenario) for scenario in scenarios]
    if all(one.sure == "none" for one in found):
        return f"In none of {len(scenarios)} scenarios is there a result."
    clear = Counter((one.name, one.sure) for one in found if one.sure in CLEARLY)
    unclear = Counter(one.sure for one in found if one.sure in WHY_NOT)
    parts = [f"{name} {CLEARLY[sure]} in {count}" for (name, sure), count in clear.most_common()]
    parts += [f"in {count} {WHY_NOT[sure]}" for sure, count in unclear.most_common()]
    said = f"{len(scenarios)} scenarios"
    return (
        f"{f'Of {said}' if clear else f'In none of {said} is a paradigm clearly first'}:"
        f" {'; '.join(parts)}."
    )


def leader(collection: Collection, scenario: str = "") -> Leader:
    """Find the paradigm that reaches the target first; without one, or where none does, the first
    to finish.

    That is clear where the leader is ahead of each other paradigm that has a time, also of those
    that have one in fewer of their repeats: a mean over the lucky repeats may be the smaller one.
    """
    success = collection.success(scenario)
    times = standings(collection, scenario, time_measure(success))
    if times and times[0].value.count == 0:
        success = Success("nothing", None, None)
        times = standings(collection, scenario, time_measure(success))
    if not times or times[0].value.count == 0:
        return Leader("", "none")
    name, target = times[0].paradigm, target_text(success)
    others = [_slower(times[0], other) for other in times[1:] if other.value.count]
    doubtful = tuple(one.other.paradigm for one in others if not one.clear)
    if not others:
        return Leader(name, "alone", target)
    if not doubtful:
        return Leader(name, "at the target" if target else "with the work", target)
    sure: Sure = "one seed" if all(one.by.low is None for one in others) else "not clear"
    return Leader(name, sure, target, doubtful)


def _headline(first: Leader) -> str:
    """Say which is first at the target; "" without a target, or without another to compare."""
    if not first.target or first.sure == "alone":
        return ""
    at_target = f"the first at {first.target}"
    if first.sure == "at the target":
        return f"{first.name} is clearly {at_target}."
    if first.sure == "one seed":
        return f"{first.name} was {at_target}; more common seeds would tell whether it always is."
    return (
        f"{first.name} is {at_target}, but not clearly: {_listed(first.doubtful)} may be as fast."
    )


def standings(collection: Collection, scenario: str, measure: Measure) -> list[Ranked]:
    """The paradigms by a measure, best first: more repeats with a value, then the better mean."""
    sign = -1.0 if measure.key.endswith("_accuracy") else 1.0
    found = []
    for paradigm, repeats in collection.scenarios()[scenario].items():
        lost = len(collection.failures(scenario, paradigm))
        values = [*(run.value(measure.key) for run in repeats), *[None] * lost]
        found.append(Ranked(paradigm, estimate(values), by_seed(repeats, measure.key)))
    return sorted(found, key=lambda one: (-one.share, sign * (one.value.mean or 0.0)))


def _slower(first: Ranked, other: Ranked) -> Versus:
    return Versus(other, paired_ratio(other.seeds, first.seeds), 1.0)


def _less_accurate(first: Ranked, other: Ranked) -> Versus:
    return Versus(other, paired_difference(first.seeds, other.seeds), 0.0)


def _against(ranked: Sequence[Ranked], compare: Callable[[Ranked, Ranked], Versus]) -> list[Versus]:
    """The leader against each other that has a value in as large a share of its repeats, in the
    order of the ranking.
    """
    return [compare(ranked[0], other) for other in ranked[1:] if other.share == ranked[0].share]


def _first(success: Success, times: Sequence[Ranked]) -> str:
    """Who is first, after how long, and how far behind the others are."""
    measure, best = time_measure(success), times[0]
    if best.value.mean is None:
        return "No run finished its work."
    reached = f"reaches {target_text(success)}" if success.target_kind else "does the whole work"
    after = f"after {_with_interval(best.value, measure, ' s')}"
    others = _against(times, _slower)
    if not others:
        alone = "there is no other paradigm to compare it with"
        if len(times) > 1:
            alone = "no other paradigm does" + (
                " so in as many of its repeats" if times[1].value.count else ""
            )
        return f"{best.paradigm} {reached} {after}; {alone}."
    return _compared(
        best.paradigm,
        f"{reached} first, {after}",
        f"{reached} {after}",
        others,
        lambda by: f"{ratio_text(by)} times as long",
        "takes",
    )


def _best(ranked: Sequence[Ranked], final: Measure) -> str:
    """Who has the best model after the same work."""
    best, word = ranked[0], final.heading.removeprefix("final ")
    if best.value.mean is None:
        return ""
    has = f"{word} of {_with_interval(best.value, final)} after the same work"
    if word == "accuracy":
        others = _against(ranked, _less_accurate)
        amount, verb = (lambda by: f"{100 * by:.2g} points less"), "has"
    else:
        others = _against(ranked, _slower)
        amount, verb = (lambda by: f"{ratio_text(by)} times that"), "has"
    if not others:
        return f"{best.paradigm} has a final {has}."
    return _compared(
        best.paradigm, f"has the best final {has}", f"has a final {has}", others, amount, verb
    )


def _compared(
    name: str,
    wins: str,
    leads: str,
    others: Sequence[Versus],
    amount: Callable[[float], str],
    verb: str,
) -> str:
    """The leader against the next; where it is not clearly ahead of each, who may be as good, and
    who is not.
    """
    alike = [one.other.paradigm for one in others if one.alike]
    rest = [one for one in others if not one.alike]
    doubtful = [one for one in rest if not one.clear and one.by.low is not None]
    text = f"{name} {leads}, the best mean" if doubtful else f"{name} {wins}"
    if alike:
        text += (
            f", and so {'do' if len(alike) > 1 else 'does'} {_listed(alike)}, the same to"
            f" {ALIKE:.1%}"
        )
    if not rest:
        return f"{text}."
    if rest[0].by.mean is None:
        return f"{text}; {rest[0].other.paradigm} is the next, but no seed has a result of both."
    if not doubtful:
        return f"{text}; {rest[0].other.paradigm}, the next, {verb} {_by(rest[0], amount)}."
    shown = ", ".join(f"{one.other.paradigm} ({_by(one, amount, ', ')})" for one in doubtful[:3])
    more = f" and {len(doubtful) - 3} more" if len(doubtful) > 3 else ""
    text += (
        f", but with {_seed_count(doubtful[0].by.count)} it cannot be told apart from {shown}{more}"
    )
    clear = next((one for one in rest if one.clear), None)
    return f"{text}; {clear.other.paradigm} {verb} {_by(clear, amount)}." if clear else f"{text}."


def _by(versus: Versus, amount: Callable[[float], str], separator: str = " (") -> str:
    """`1.16 times as long (95% interval 1.05 to 1.28)`."""
    if versus.by.mean is None:
        return "no seed has a result of both"
    number = ratio_text if versus.equal == 1 else _points
    interval = interval_text(versus.by.low, versus.by.high, number)
    pairs = "" if versus.by.complete else f"{versus.by.count} of {versus.by.total} common seeds"
    inside = ", ".join(filter(None, (interval, pairs)))
    closing = ")" if separator == " (" else ""
    return f"{amount(versus.by.mean)}{f'{separator}{inside}{closing}' if inside else ''}"


def _points(value: float) -> str:
    return f"{100 * value:.2g}"


def _partial(success: Success, times: Sequence[Ranked]) -> str:
    """Who did not always reach the target."""
    partial = [one for one in times if not one.value.complete]
    if not partial:
        return ""
    listed = ", ".join(f"{one.paradigm} {one.value.count} of {one.value.total}" for one in partial)
    text = (
        f"Not every repeat reached {target_text(success)}: {listed}; times are of those that did."
    )
    best = times[0].value
    quicker = [
        one.paradigm
        for one in partial
        if one.value.mean is not None
        and best.mean is not None
        and one.share < times[0].share
        and one.value.mean < best.mean
    ]
    return f"{text[:-1]}, and there {_listed(quicker)} took less." if quicker else text


def _quality_of(first: Ranked, ranked: Sequence[Ranked], final: Measure) -> str:
    """How good the first one's model became, and whether another's is clearly better."""
    mine = next(one for one in ranked if one.paradigm == first.paradigm)
    if mine.value.mean is None:
        return ""
    text = f"Its {final.heading} is {_with_interval(mine.value, final)}"
    accuracy = final.key.endswith("_accuracy")
    for other in ranked:
        versus = _less_accurate(other, mine) if accuracy else _slower(other, mine)
        if other is not mine and versus.clear and versus.by.mean is not None:
            gap = (
                f"{100 * versus.by.mean:.2g} points more"
                if accuracy
                else f"{ratio_text(1 / versus.by.mean)} times that"
            )
            return f"{text}; {other.paradigm} has {gap}."
    return f"{text}."


def _with_interval(value: Estimate, measure: Measure, unit: str = "") -> str:
    """`3.42 s (95% interval 3.10 to 3.74; 2 of 3 repeats)`, with the mean's digits; no time below
    0, no share above 1.
    """
    assert value.mean is not None
    form = measure.form(value.mean)
    most = 1.0 if form.endswith("%") else inf
    interval = interval_text(
        value.low, value.high, lambda end: format(min(max(end, 0.0), most), form)
    )
    of = "" if value.complete else f"{value.count} of {_repeats(value.total)}"
    inside = "; ".join(filter(None, (interval, of)))
    return f"{format(value.mean, form)}{unit}{f' ({inside})' if inside else ''}"


def _faults(collection: Collection, scenario: str) -> str:
    """How many runs did not finish."""
    statuses: dict[str, list[str]] = {}
    for paradigm, repeats in collection.scenarios()[scenario].items():
        there = [
            *(run.status for run in repeats),
            *("failed" for _ in collection.failures(scenario, paradigm)),
        ]
        for status, count in Counter(there).items():
            if status != "finished":
                statuses.setdefault(status, []).append(f"{paradigm} {count} of {len(there)}")
    return " ".join(f"{status.capitalize()}: {', '.join(who)}." for status, who in statuses.items())


def _seeds(groups: dict[str, list[Run]]) -> str:
    """What may not be concluded."""
    if max((len(repeats) for repeats in groups.values()), default=0) == 1:
        return "One seed: no interval, so a difference cannot be told from chance."
    return ""


def _listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _repeats(count: int) -> str:
    return f"{count} repeat{'s' * (count != 1)}"


def _seed_count(count: int) -> str:
    return f"{count} common seed{'s' * (count != 1)}"
