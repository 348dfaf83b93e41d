"""The conclusions of a report in words: who leads and how surely, limits, and cautions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from raysync.record.event_text import seconds
from raysync.results.collection import CODE_DIGITS, Collection
from raysync.results.columns import target_text, with_interval
from raysync.results.ranking import Leader, Ranking, Standings, Sure

WHY_NOT: dict[Sure, str] = {
    "not clear": "the leaders cannot be told apart",
    "alone": "only one paradigm has a result",
    "one seed": "fewer than two seeds are common, so chance cannot be ruled out",
    "none": "there is no result",
}
HELPS = 0.02  # the share of the time that a change must save to be named
LOSSES = {process: f"lost_{process}s" for process in ("worker", "server", "evaluator")}
AWAY = {process: f"{process}_away_s" for process in ("worker", "server")}
MOST_LOSSES = 5  # the most runs whose losses are described one by one
MOST_RIVALS = 3  # the most paradigms that are named as equal to the leader


def overall(rankings: Sequence[Ranking]) -> str:
    """Count the scenarios by clear leader, or reason for none, in a line; "" for one scenario."""
    if len(rankings) == 1:
        return ""
    clear: Counter[str] = Counter()
    unclear: Counter[str] = Counter()
    for ranking in rankings:
        leader = ranking.times.leader
        if leader.sure == "clear":
            what = "reach the target" if ranking.target else "finish the whole work"
            clear[f"{leader.name} is clearly the first to {what}"] += 1
        else:
            unclear[WHY_NOT[leader.sure]] += 1
    parts = [f"{text} in {count}" for text, count in clear.most_common()]
    parts += [f"in {count} {why}" for why, count in unclear.most_common()]
    return f"Of {len(rankings)} scenarios: {'; '.join(parts)}."


def answer(ranking: Ranking) -> str:
    """Say which paradigm reaches the target first, and how surely, or why that is unknown.

    Without a target, or if no repeat reached it: which model is best after the same work, and which
    paradigm is the first to finish.
    """
    times, final = ranking.times, ranking.final
    parts = []
    if not ranking.target and final is not None:
        target = target_text(ranking.criteria)
        parts.append(f"No repeat reached {target}." if target else "No target was given.")
        if final.leader.sure != "none":
            parts.append(lead_text(final, f"has the best {final.measure.heading}"))
    if times.leader.sure == "none":
        return " ".join([*parts, "No run finished its work."])
    what = f"reach {ranking.target}" if ranking.target else "finish the whole work"
    parts.append(lead_text(times, f"is the first to {what}", " s"))
    if ranking.target and not all(entry.value.complete for entry in times.ranked):
        parts.append(
            f"Not every repeat reached {ranking.target}; the times are means over those that did."
        )
    if ranking.target and final is not None and (better := _better(final, times.leader.name)):
        has = "have" if len(better) > 1 else "has"
        parts.append(f"{listed(better)} {has} a clearly better {final.measure.heading}.")
    return " ".join(parts)


def lead_text(standings: Standings, does: str, unit: str = "") -> str:
    """Say which paradigm is first by a measure, with its value, and how surely.

    Args:
        standings: at least one paradigm has a value.
        does: `is the first to reach 90.0%`.
        unit: of the value, with a space before it.
    """
    value, leader = standings.first.value, standings.leader
    text = with_interval(value.mean, value.low, value.high, 1, 1, standings.measure.form)
    of = "" if value.complete else f" ({value.count} of {value.total} repeats)"
    return f"{leader.name} {does}: {text}{unit}{of}. {_how_sure(leader)}"


def _how_sure(leader: Leader) -> str:
    if leader.sure == "clear":
        return "It is clearly ahead of each other one."
    if leader.sure == "alone":
        return "There is no other result to compare it with."
    if leader.sure == "one seed":
        return "Fewer than two seeds are common, so that can be chance."
    more = len(leader.doubtful) - MOST_RIVALS
    rivals = [*leader.doubtful[:MOST_RIVALS], *([f"{more} more"] if more > 0 else [])]
    return f"It cannot be told apart from {listed(rivals)}."


def _better(final: Standings, name: str) -> list[str]:
    """Return the paradigms with clearly better models than the paradigm `name`."""
    [worse] = (entry for entry in final.ranked if entry.paradigm == name)
    others = (entry for entry in final.ranked if entry is not worse)
    return [better.paradigm for better in others if final.compare(better, worse).is_clear]


def bottlenecks(collection: Collection, scenario: str) -> list[str]:
    """Describe the bottleneck of each paradigm, by its first seed with a known one."""
    return describe_bottlenecks(
        {
            paradigm: [run.record.summary for run in runs]
            for paradigm, runs in collection.scenarios[scenario].items()
        }
    )


def describe_bottlenecks(summaries: Mapping[str, Sequence[Mapping[str, Any] | None]]) -> list[str]:
    """Describe the bottleneck of each paradigm, once for paradigms with the same text.

    Args:
        summaries: label of a paradigm -> summary by seed; None: the run failed.
    """
    paradigms: dict[str, list[str]] = {}
    for paradigm, runs in summaries.items():
        texts = (
            bottleneck(summary, _summaries_at(summaries, index))
            for index, summary in enumerate(runs)
            if summary
        )
        if text := next(filter(None, texts), ""):
            paradigms.setdefault(text, []).append(paradigm)
    if len(summaries) == 1:
        return list(paradigms)
    return [f"{', '.join(labels)}: {text}" for text, labels in paradigms.items()]


def _summaries_at(
    summaries: Mapping[str, Sequence[Mapping[str, Any] | None]], index: int
) -> dict[str, Mapping[str, Any]]:
    """Return the summary of each paradigm at an index of the seeds."""
    found = {label: runs[index] for label, runs in summaries.items() if index < len(runs)}
    return {label: summary for label, summary in found.items() if summary}


def bottleneck(
    summary: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """Describe a run's bottleneck and best change, from its summary; "": unknown.

    Args:
        summary: of the run.
        others: label -> summary of other paradigms in the same table. One that makes the same
            updates in less time than the best change is the best change.
    """
    found = summary.get("bottleneck")
    if not found:
        return ""
    now = seconds(summary["seconds"])
    if found["without_s"] is None:
        text = "Computing alone limits it: no link, server, fault or slow worker does."
    else:
        text = (
            f"The bottleneck is {found['what']}: without it the work would take"
            f" {seconds(found['without_s'])} instead of {now}."
        )
    best = best_change(summary, others or {})
    if best is None:
        return f"{text} No change that was simulated helps by 2%."
    return f"{text} What helps most: {best[0]}, {seconds(best[1])}."


def best_change(
    summary: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]
) -> tuple[str, float] | None:
    """Return the best change for a run, and the seconds of its work then; None: nothing helps."""
    found = summary["bottleneck"]
    change, least_s = found["change"], found["change_s"]
    if change is None:
        least_s = (1 - HELPS) * summary["seconds"]
    for label, other in others.items():
        if _makes_the_same_updates(summary, other) and other["seconds"] < least_s:
            change, least_s = f"{label}, as in this table", other["seconds"]
    return None if change is None else (change, least_s)


def _makes_the_same_updates(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two runs applied equally many updates of fresh gradients, and dropped none.

    So do BSP with equal batches, with balanced ones, and without a server.
    """
    keys = ("status", "samples", "updates", "pushes")
    are_fresh = not any(run.get("staleness_max") or run.get("dropped") for run in (one, other))
    return are_fresh and all(one.get(key) == other.get(key) for key in keys)


def resumptions(collection: Collection) -> list[str]:
    """Describe the runs that were resumed, and their losses."""
    runs = [run for run in collection.runs if run.record.summary.get("resumptions")]
    is_single = len(collection.runs) == 1
    return [
        _resumption_sentence("The run" if is_single else run.label, run.record.summary)
        for run in runs
    ]


def _resumption_sentence(name: str, summary: Mapping[str, Any]) -> str:
    lost, away = seconds(summary.get("lost_s")), seconds(summary.get("away_s"))
    return (
        f"{name} was resumed {summary['resumptions']:,} ×: {lost} of training and"
        f" {summary.get('lost_pushes') or 0:,} pushes were lost and repeated, and the"
        f" interruption took {away}, which only the wall-clock seconds include."
    )


def losses(collection: Collection) -> list[str]:
    """Describe the unplanned losses of the runs."""
    return describe_losses((run.label, run.record.summary) for run in collection.runs)


def describe_losses(runs: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Describe the unplanned losses of runs, given as name and summary; of many, the worst."""
    hit = [(name, summary) for name, summary in runs if any(map(summary.get, LOSSES.values()))]
    hit.sort(key=lambda run: _away_s(run[1]), reverse=True)
    sentences = [
        f"{name} unexpectedly lost {_lost_text(summary)} in its {seconds(summary['seconds'])}."
        for name, summary in hit[:MOST_LOSSES]
    ]
    if rest := [summary for _, summary in hit[MOST_LOSSES:]]:
        keys = (*LOSSES.values(), *AWAY.values())
        total = {key: sum(summary.get(key) or 0 for summary in rest) for key in keys}
        runs_text = _counted(len(rest), "more run")
        sentences.append(f"{runs_text} unexpectedly lost {_lost_text(total)}.")
    return sentences


def _lost_text(summary: Mapping[str, Any]) -> str:
    parts = []
    for process, key in LOSSES.items():
        if count := summary.get(key):
            away_s = summary.get(AWAY.get(process, ""))  # 0: the run was resumed instead
            away = f" (away for {seconds(away_s)})" if away_s else ""
            parts.append(_counted(count, process) + away)
    return listed(parts)


def _away_s(summary: Mapping[str, Any]) -> float:
    return sum(summary.get(key) or 0.0 for key in AWAY.values())


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"


def cautions(collection: Collection) -> list[str]:
    """Warn of differences that make runs of the collection incomparable."""
    return [*_code_differences(collection), *_batch_metrics(collection)]


def _code_differences(collection: Collection) -> Iterator[str]:
    """Describe the different code of runs with equal settings."""
    described: dict[str, str] = {}
    for run in collection.runs:
        for part, key in ((run.scenario, "task_sha256"), (run.paradigm, "paradigm_sha256")):
            code = run.record.environment.get("user_code") or {}
            name = f"code={str(code.get(key) or 'none')[:CODE_DIGITS]}"
            if part.endswith(name):
                described[name] = _code_text(code)
    if described:
        codes = "; ".join(f"{name} ({text})" if text else name for name, text in described.items())
        yield f"Runs of the same settings have different code, and are kept apart: {codes}."


def _code_text(code: Mapping[str, Any]) -> str:
    files, commit = ", ".join(code.get("files", ())), code.get("commit")
    since = ", changed since" if code.get("dirty") else ""
    return f"{files}, commit {commit[:CODE_DIGITS]}{since}" if commit else files


def _batch_metrics(collection: Collection) -> Iterator[str]:
    """Warn of metrics that depend on the batch, if evaluations had several batch sizes."""
    sizes: dict[str, set[int]] = {}
    for run in collection.runs:
        for name in run.record.summary.get("batch_metrics", ()):
            sizes.setdefault(name, set()).add(run.record.config.evaluation.batch_size)
    for name, batch_sizes in sizes.items():
        if len(batch_sizes) > 1:
            text = listed([f"{size:,}" for size in sorted(batch_sizes)])
            yield (
                f"{name} depends on the batch that it is measured on: it cannot be compared between"
                f" evaluation.batch_size {text}."
            )


def listed(words: Sequence[str]) -> str:
    """Join words: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
