"""A ranking in a sentence or two, with its uncertainty: never more than the numbers allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Any

from raysync.record.event_text import seconds
from raysync.results.collection import CODE_SHOWN, Collection
from raysync.results.columns import Measure, interval_text, ratio_text, target_text
from raysync.results.ranking import ALIKE, Comparison, Ranking, Standings, Sure
from raysync.results.statistics import Estimate

CLEARLY: dict[Sure, str] = {
    "at the target": "is clearly the first to reach the target",
    "with the work": "is clearly the first to finish the whole work",
}
WHY_NOT: dict[Sure, str] = {
    "not clear": "the leaders cannot be told apart",
    "alone": "only one paradigm has a result",
    "one seed": "fewer than two seeds are common, so chance cannot be ruled out",
    "none": "there is no result",
}
HELPS = 0.02
"""The share of the time that a change must save to be named."""
NAMED = 3
"""Paradigms that cannot be told apart from the leader are named up to this number."""


def overall(rankings: Sequence[Ranking]) -> str:
    """Summarise all scenarios in a line that never says more than the sentences below it.

    Of one scenario it says which paradigm is first at the target, and how surely ("" without a
    target, or without another paradigm to compare). Of several it says which is clearly first in
    how many of them, and what keeps the others from having a leader.
    """
    if len(rankings) == 1:
        return _headline(rankings[0])
    leaders = [ranking.leader for ranking in rankings]
    if all(leader.sure == "none" for leader in leaders):
        return f"In none of {len(rankings)} scenarios is there a result."
    clear = Counter((leader.name, leader.sure) for leader in leaders if leader.sure in CLEARLY)
    unclear = Counter(leader.sure for leader in leaders if leader.sure in WHY_NOT)
    parts = [f"{name} {CLEARLY[sure]} in {count}" for (name, sure), count in clear.most_common()]
    parts += [f"in {count} {WHY_NOT[sure]}" for sure, count in unclear.most_common()]
    opening = f"Of {len(rankings)} scenarios"
    if not clear:
        opening = f"In none of {len(rankings)} scenarios is a paradigm clearly first"
    return f"{opening}: {'; '.join(parts)}."


def answer(ranking: Ranking) -> str:
    """Say which paradigm reaches the target first, by how much, how good its model is; or why that
    cannot be said.

    Without a target, and where no repeat reached it: which model is best after the same work, and
    which paradigm finishes that first.
    """
    reached = ranking.times is ranking.to_target
    sentences = []
    if ranking.to_target is not None and not reached:
        repeats = sum(ranked.value.total for ranked in ranking.to_target.ranked)
        sentences.append(f"No repeat reached {target_text(ranking.success)} (0 of {repeats}).")
    elif ranking.to_target is None and ranking.final is not None:
        sentences.append("No target was given.")
    if reached:
        sentences += [_first(ranking), _partial(ranking), _quality_of_first(ranking)]
    else:
        sentences += [_best_model(ranking.final), _first(ranking)]
    sentences += [_unfinished(ranking), _one_seed(ranking)]
    return " ".join(filter(None, sentences))


def resumptions(collection: Collection) -> list[str]:
    """Say which runs went on from a checkpoint, how often, and what that cost them."""
    runs = [run for run in collection.runs if run.record.summary.get("resumptions")]
    only = len(collection.runs) == 1
    return [_resumed("The run" if only else run.label, run.record.summary) for run in runs]


def cautions(collection: Collection) -> list[str]:
    """Say what keeps runs of the collection from being compared like with like."""
    return [*_codes(collection), *_batch_metrics(collection)]


def _codes(collection: Collection) -> Iterator[str]:
    """Name the different code of runs that are otherwise alike."""
    described: dict[str, str] = {}
    for run in collection.runs:
        for part, key in ((run.scenario, "task_sha256"), (run.paradigm, "paradigm_sha256")):
            code = run.record.environment.get("user_code") or {}
            name = f"code={str(code.get(key) or 'none')[:CODE_SHOWN]}"
            if part.endswith(name):
                described[name] = _code(code)
    if described:
        listed = "; ".join(f"{name} ({text})" if text else name for name, text in described.items())
        yield f"Runs of the same settings have different code, and are kept apart: {listed}."


def _code(code: Mapping[str, Any]) -> str:
    files, commit = ", ".join(code.get("files", ())), code.get("commit")
    since = ", changed since" if code.get("dirty") else ""
    return f"{files}, commit {commit[:CODE_SHOWN]}{since}" if commit else files


def _batch_metrics(collection: Collection) -> Iterator[str]:
    """Name the metrics that depend on the batch, where evaluations had batches of other sizes."""
    sizes: dict[str, set[int]] = {}
    for run in collection.runs:
        for name in run.record.summary.get("batch_metrics", ()):
            sizes.setdefault(name, set()).add(run.record.config.evaluation.batch_size)
    for name, each in sizes.items():
        if len(each) > 1:
            listed = _listed([f"{size:,}" for size in sorted(each)])
            yield (
                f"{name} depends on the batch that it is measured on: it cannot be compared between"
                f" evaluation.batch_size {listed}."
            )


def bottlenecks(collection: Collection, scenario: str) -> list[str]:
    """Say where the time of each paradigm of a scenario went, by its first seed of which that is
    known.
    """
    return said_of(
        {
            paradigm: [run.record.summary for run in runs]
            for paradigm, runs in collection.scenarios()[scenario].items()
        }
    )


def said_of(summaries: Mapping[str, Sequence[Mapping[str, Any] | None]]) -> list[str]:
    """Say where the time of each paradigm went, once for those of which the same is true.

    Args:
        summaries: label of a paradigm -> a summary for each seed; None for a run that failed.
    """
    paradigms: dict[str, list[str]] = {}
    for paradigm, runs in summaries.items():
        texts = (
            bottleneck(summary, _row(summaries, index))
            for index, summary in enumerate(runs)
            if summary
        )
        if text := next(filter(None, texts), ""):
            paradigms.setdefault(text, []).append(paradigm)
    if len(summaries) == 1:
        return list(paradigms)
    return [f"{', '.join(labels)}: {text}" for text, labels in paradigms.items()]


def bottleneck(
    summary: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """Say what limits a run and what helps most, from its summary; "" if that was not found.

    Args:
        summary: of the run.
        others: label of a paradigm -> the summary of its run in the same table. One that makes the
            same updates in less time than the best change is what helps most.
    """
    found = summary.get("bottleneck")
    if not found:
        return ""
    now = seconds(summary["seconds"])
    if found["without_s"] is None:
        text = "Its time is that of computing: no link, server, fault or slow worker limits it."
    else:
        text = (
            f"The bottleneck is {found['what']}: without it the work would take"
            f" {seconds(found['without_s'])} in place of {now}."
        )
    best = helps_most(summary, others or {})
    if best is None:
        return f"{text} No change that was simulated helps by 2%."
    return f"{text} What helps most: {best[0]}, {seconds(best[1])}."


def helps_most(
    summary: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]
) -> tuple[str, float] | None:
    """Return what helps a run most, and the seconds that its work then takes; None: nothing does.

    Args:
        summary: of the run.
        others: see `bottleneck`.
    """
    found = summary["bottleneck"]
    change, least_s = found["change"], found["change_s"]
    if change is None:
        least_s = (1 - HELPS) * summary["seconds"]
    for label, other in others.items():
        if _makes_the_same_updates(summary, other) and other["seconds"] < least_s:
            change, least_s = f"{label}, as in this table", other["seconds"]
    return None if change is None else (change, least_s)


def _row(
    summaries: Mapping[str, Sequence[Mapping[str, Any] | None]], index: int
) -> dict[str, Mapping[str, Any]]:
    """Return the summary of each paradigm with the seed of that index."""
    found = {label: runs[index] for label, runs in summaries.items() if index < len(runs)}
    return {label: summary for label, summary in found.items() if summary}


def _makes_the_same_updates(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Say whether two runs have applied equally many updates of fresh gradients, and no gradient is
    lost: as of BSP with equal batches, with balanced ones, and without a server.
    """
    of_both = ("status", "samples", "updates", "pushes")
    are_fresh = not any(each.get("staleness_max") or each.get("dropped") for each in (one, other))
    return are_fresh and all(one.get(key) == other.get(key) for key in of_both)


def _resumed(name: str, summary: Mapping[str, Any]) -> str:
    count = summary["resumptions"]
    often = {1: "once", 2: "twice"}.get(count, f"{count:,} times")
    pushes = _counted(summary.get("lost_pushes") or 0, "push", "pushes")
    lost, away = seconds(summary.get("lost_s")), seconds(summary.get("away_s"))
    return (
        f"{name} was resumed {often}; {lost} of training and {pushes} were lost and done again, and"
        f" it was away for {away}, which no measure of time contains but the seconds on the wall."
    )


def _headline(ranking: Ranking) -> str:
    leader = ranking.leader
    if not ranking.target or leader.sure == "alone":
        return ""
    first = f"the first to reach {ranking.target}"
    if leader.sure == "at the target":
        return f"{leader.name} is clearly {first}."
    if leader.sure == "one seed":
        return f"{leader.name} was {first}; more common seeds would tell whether it always is."
    others = _listed(leader.doubtful)
    return f"{leader.name} is {first}, but not clearly: {others} could be as fast."


def _first(ranking: Ranking) -> str:
    """Say which paradigm is first, after how long, and how far behind the others are."""
    times, best = ranking.times, ranking.times.first
    if best.value.mean is None:
        return "No run finished its work."
    reaches = f"reaches {ranking.target}" if ranking.target else "finishes the whole work"
    after = f"after {_with_interval(best.value, times.measure, ' s')}"
    if not times.as_often:
        alone = "there is no other paradigm to compare it with"
        if len(times.ranked) > 1:
            as_often = " so in as many of its repeats" if times.ranked[1].value.count else ""
            alone = f"no other paradigm does{as_often}"
        return f"{best.paradigm} {reaches} {after}; {alone}."
    return _compared(
        times,
        wins=f"{reaches} first, {after}",
        leads=f"{reaches} {after}",
        amount=lambda by: f"{ratio_text(by)} times as long",
        verb="takes",
    )


def _best_model(final: Standings | None) -> str:
    """Say which paradigm has the best model after the same work."""
    if final is None or final.first.value.mean is None:
        return ""
    word = final.measure.heading.removeprefix("final ")
    value = f"{word} of {_with_interval(final.first.value, final.measure)} after the same work"
    if not final.as_often:
        return f"{final.first.paradigm} has a final {value}."
    return _compared(
        final,
        wins=f"has the best final {value}",
        leads=f"has a final {value}",
        amount=_worse_by(final.measure),
        verb="has",
    )


def _compared(
    standings: Standings, *, wins: str, leads: str, amount: Callable[[float], str], verb: str
) -> str:
    """Say how the leader stands against the next one; where it is not clearly ahead of each, which
    could be as good, and which is not.

    Args:
        standings: with at least one other paradigm that has a value as often as the first.
        wins: what the leader does, if it is clearly ahead.
        leads: what it does, if it is not.
        amount: shows by how much another is worse.
        verb: what that one does in `amount`.
    """
    measure = standings.measure
    alike = [versus.other.paradigm for versus in standings.as_often if versus.alike]
    rest = [versus for versus in standings.as_often if not versus.alike]
    doubtful = [versus for versus in rest if not versus.clear and versus.by.low is not None]
    does = f"{leads}, the best mean" if doubtful else wins
    text = f"{standings.first.paradigm} {does}"
    if alike:
        do = "do" if len(alike) > 1 else "does"
        text += f", and so {do} {_listed(alike)}, the same to {ALIKE:.1%}"
    if not rest:
        return f"{text}."
    after = rest[0].other.paradigm
    if rest[0].by.mean is None:
        return f"{text}; {after} is the next, but no seed has a result of both."
    if not doubtful:
        return f"{text}; {after}, the next, {verb} {_by(rest[0], measure, amount, ' (', ')')}."
    named = ", ".join(
        f"{versus.other.paradigm} ({_by(versus, measure, amount, ', ')})"
        for versus in doubtful[:NAMED]
    )
    more = f" and {len(doubtful) - NAMED} more" if len(doubtful) > NAMED else ""
    seeds = _counted(doubtful[0].by.count, "common seed")
    text += f", but with {seeds} it cannot be told apart from {named}{more}"
    clear = next((versus for versus in rest if versus.clear), None)
    if clear is None:
        return f"{text}."
    return f"{text}; {clear.other.paradigm} {verb} {_by(clear, measure, amount, ' (', ')')}."


def _by(
    versus: Comparison,
    measure: Measure,
    amount: Callable[[float], str],
    opening: str,
    closing: str = "",
) -> str:
    """`1.16 times as long (95% interval 1.05 to 1.28)`."""
    if versus.by.mean is None:
        return "no seed has a result of both"
    number = ratio_text if versus.equal == 1 else _difference(measure)
    interval = interval_text(versus.by.low, versus.by.high, number)
    pairs = "" if versus.by.complete else f"{versus.by.count} of {versus.by.total} common seeds"
    inside = ", ".join(filter(None, (interval, pairs)))
    uncertainty = f"{opening}{inside}{closing}" if inside else ""
    return f"{amount(versus.by.mean)}{uncertainty}"


def _partial(ranking: Ranking) -> str:
    """Say which paradigms did not always reach the target, and which of them took less time where
    they did.
    """
    ranked, best = ranking.times.ranked, ranking.times.first
    partial = [entry for entry in ranked if not entry.value.complete]
    if not partial:
        return ""
    listed = ", ".join(
        f"{entry.paradigm} {entry.value.count} of {entry.value.total}" for entry in partial
    )
    quicker = [
        entry.paradigm
        for entry in partial
        if entry.value.mean is not None
        and best.value.mean is not None
        and entry.share < best.share
        and entry.value.mean < best.value.mean
    ]
    took_less = f", and there {_listed(quicker)} took less" if quicker else ""
    return (
        f"Not every repeat reached {ranking.target}: {listed}; the times are means over those"
        f" that did{took_less}."
    )


def _quality_of_first(ranking: Ranking) -> str:
    """Say how good the first one's model became, and whether another's is clearly better."""
    final = ranking.final
    if final is None:
        return ""
    first = next(entry for entry in final.ranked if entry.paradigm == ranking.times.first.paradigm)
    if first.value.mean is None:
        return ""
    text = f"Its {final.measure.heading} is {_with_interval(first.value, final.measure)}"
    for other in final.ranked:
        versus = final.compare(other, first)
        if other is not first and versus.clear and versus.by.mean is not None:
            by = 1 / versus.by.mean if versus.equal else versus.by.mean
            gap = _better_by(final.measure)(by)
            return f"{text}; {other.paradigm} has {gap}."
    return f"{text}."


def _with_interval(value: Estimate, measure: Measure, unit: str = "") -> str:
    """`3.42 s (95% interval 3.10 to 3.74; 2 of 3 repeats)`, with the mean's digits; no time below
    0, no share above 1. Metrics of other tasks can be negative.
    """
    assert value.mean is not None
    form = measure.form(value.mean)
    most = 1.0 if form.endswith("%") else inf
    least = -inf if measure.compared_by == "difference" else 0.0
    interval = interval_text(
        value.low, value.high, lambda end: format(min(max(end, least), most), form)
    )
    of = "" if value.complete else f"{value.count} of {_counted(value.total, 'repeat')}"
    inside = "; ".join(filter(None, (interval, of)))
    uncertainty = f" ({inside})" if inside else ""
    return f"{format(value.mean, form)}{unit}{uncertainty}"


def _unfinished(ranking: Ranking) -> str:
    """Say how many runs did not finish, and how they ended."""
    by_status: dict[str, list[str]] = {}
    for paradigm, statuses in ranking.statuses.items():
        for status, count in statuses.items():
            if status != "finished":
                text = f"{paradigm} {count} of {statuses.total()}"
                by_status.setdefault(status, []).append(text)
    return " ".join(
        f"{status.capitalize()}: {', '.join(parts)}." for status, parts in by_status.items()
    )


def _one_seed(ranking: Ranking) -> str:
    """Say what cannot be concluded from single runs."""
    if ranking.most_runs == 1:
        return "One seed: no interval, so a difference cannot be told from chance."
    return ""


def _worse_by(measure: Measure) -> Callable[[float], str]:
    """Return what says how much worse another model is."""
    return _amount(measure, "less" if measure.rises else "more")


def _better_by(measure: Measure) -> Callable[[float], str]:
    """Return what says how much better another model is."""
    return _amount(measure, "more" if measure.rises else "less")


def _amount(measure: Measure, direction: str) -> Callable[[float], str]:
    if measure.compared_by == "ratio":
        return _times_that
    number, unit = _difference(measure), " points" * (measure.compared_by == "points")
    return lambda value: f"{number(value)}{unit} {direction}"


def _difference(measure: Measure) -> Callable[[float], str]:
    """Return what shows the difference of two values."""
    return _points if measure.compared_by == "points" else measure.show


def _points(value: float) -> str:
    return f"{100 * value:.2g}"


def _times_that(value: float) -> str:
    return f"{ratio_text(value)} times that"


def _listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
