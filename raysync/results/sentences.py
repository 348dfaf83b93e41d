"""The conclusions of a report in words: who leads and how surely, limits, and cautions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raysync.record.event_text import seconds
from raysync.results import provenance
from raysync.results.collection import CODE_DIGITS, CollectedRun, Collection, code_label
from raysync.results.columns import margin_text, metric_text, target_text, with_interval
from raysync.results.comparison import Repeat
from raysync.results.grouping import setting_text, stop_text
from raysync.results.ranking import Leader, Ranking, Standings, Sure, rank_all
from raysync.results.search_course import SearchCourse, SearchedTrial

WHY_NOT: dict[Sure, str] = {
    "not clear": "the leaders cannot be told apart",
    "side by side": "runs shared cores and so measured each other",
    "alone": "only one paradigm has a result",
    "one seed": "fewer than two seeds are common, so chance cannot be ruled out",
    "none": "there is no result",
}
HOW_SURE: dict[Sure, str] = {
    "clear": "It is clearly ahead of each other one.",
    "only": "No other paradigm did.",
    "side by side": "It is ahead of each other one, but runs shared cores, so that is not clear.",
    "alone": "There is no other result to compare it with.",
    "one seed": "Fewer than two seeds are common, so that can be chance.",
}
HELPS = 0.02  # the share of the time that a change must save to be named
EXPLAINS = 0.8  # the share of what is lost that a limit must explain to be named as the cause
LOSSES = {process: f"lost_{process}s" for process in ("worker", "server", "evaluator")}
AWAY = {process: f"{process}_away_s" for process in ("worker", "server")}
MOST_LOSSES = 5  # the most runs whose losses are described one by one
MOST_RIVALS = 3  # the most paradigms that are named as equal to the leader
MOST_SEEDS = 12  # the most seeds that are listed one by one
MOST_GROUPS = 6  # the most groups of runs that are named as left out


def overall(rankings: Sequence[Ranking]) -> str:
    """Count the scenarios by clear leader, or reason for none, in a line; "" for one scenario."""
    if len(rankings) == 1:
        return ""
    clear: Counter[str] = Counter()
    unclear: Counter[str] = Counter()
    for ranking in rankings:
        leader = ranking.deciding.leader
        if leader.sure in ("clear", "only"):
            clear[f"{leader.name} {_what_it_does(ranking, leader)}"] += 1
        else:
            unclear[WHY_NOT[leader.sure]] += 1
    parts = [f"{text} in {count}" for text, count in clear.most_common()]
    parts += [f"in {count} {why}" for why, count in unclear.most_common()]
    return f"Of {len(rankings)} scenarios: {'; '.join(parts)}."


def _what_it_does(ranking: Ranking, leader: Leader) -> str:
    if ranking.deciding is not ranking.times:
        return f"has clearly the best {ranking.deciding.measure.heading}"
    first = "the only one" if leader.sure == "only" else "clearly the first"
    return f"is {first} to {'reach the target' if ranking.target else 'finish the whole work'}"


def answer(ranking: Ranking) -> str:
    """Say which paradigm leads by what can be compared, and how surely, or why none does.

    With a target, by the time to it. Without one, or if no repeat reached it: which model is best
    after equal work or time, and which paradigm is the first to finish. `comparison` has the rules.
    """
    times, final = ranking.times, ranking.final
    parts = []
    if not ranking.target and final is not None:
        target = target_text(ranking.criteria)
        parts.append(f"No repeat reached {target}." if target else "No target was given.")
        parts += _quality_texts(final, has_target=bool(target))
    if times.leader.sure == "none":
        parts.append("No run did its whole work.")
    else:
        what, did = "finish the whole work", "finished the whole work"
        if ranking.target:
            what, did = f"reach {ranking.target}", f"reached {ranking.target}"
        parts.append(lead_text(times, f"is the first to {what}:", f"{did} in", " s"))
    if ranking.target and any(None in entry.by_seed.values() for entry in times.ranked):
        parts.append(
            f"Not every repeat reached {ranking.target}; the times are means over those that did."
        )
    if ranking.target and final is not None and (better := _better(final, times.leader.name)):
        has = "have" if len(better) > 1 else "has"
        parts.append(f"{listed(better)} {has} a clearly better {final.measure.heading}.")
    parts += _equivalence_texts(final)
    if ranking.rates:
        texts = [f"{choice.label} (of {len(choice.labels)})" for choice in ranking.rates]
        parts.append(
            "Of rows that differ in their learning rate alone, the best is ranked, by"
            f" {ranking.rates[0].chosen_by}: {listed(texts)}."
        )
    parts += _left_out_texts(ranking)
    if ranking.share_cores:
        parts.append(_shared_text(ranking))
    return " ".join(parts)


def scenario_answer(ranking: Ranking) -> str:
    """Return the answer with the name of its scenario, if it has one."""
    return f"{ranking.scenario}: {answer(ranking)}" if ranking.scenario else answer(ranking)


def _quality_texts(final: Standings, *, has_target: bool) -> list[str]:
    """Describe the leader by the last model, at equal work or time, or why there is none."""
    compared = final.compared
    heading = final.measure.heading
    if compared.cause == "unequal ends":
        if len(final.ranked) < 2:
            return []
        instead = "" if has_target else ", or with a target,"
        return [
            f"No paradigm leads by {heading}: the runs ended after unequal work. Without the"
            f" settings that end runs early{instead} they can be compared."
        ]
    if final.leader.sure == "none":
        return []
    at, limit = "", compared.limit
    if limit is not None:
        at = f" after the {seconds(limit.seconds)}"
        if compared.basis == "equal work":
            at = f" at {limit.progress:.0%} of the work"
        at += f", where {limit.by} ended all runs"
    return [lead_text(final, f"has the best {heading}{at}:", f"has a {heading} of")]


def _equivalence_texts(final: Standings | None) -> list[str]:
    """Say which paradigms have as good a model as the best one, within the margin asked for."""
    if final is None or final.margin is None or final.first.value.count == 0:
        return []
    alike = final.equally_good
    rest = [versus.other.paradigm for versus in final.behind if versus.other.paradigm not in alike]
    is_within = (
        f"is within {margin_text(final.measure, final.margin)} of {final.first.paradigm}'s by two"
        " one-sided tests of 5%"
    )
    texts = []
    if alike:
        texts.append(f"The {final.measure.heading} of {listed(alike)} {is_within}.")
    if rest:
        instead = "is" if alike else is_within
        texts.append(
            f"It is not shown that the {final.measure.heading} of {listed(rest)} {instead}."
        )
    return texts


def _left_out_texts(ranking: Ranking) -> list[str]:
    """Name the runs that are not compared, by how they ended, for each measure that is stated."""
    what = f"the times {f'to {ranking.target}' if ranking.target else 'of the whole work'}"
    stated = {what: ranking.times}
    if not ranking.target and ranking.final is not None:
        stated[f"the {ranking.final.measure.heading}"] = ranking.final
    texts: dict[str, list[str]] = {}
    for what, standings in stated.items():
        compared = standings.compared
        if compared.cause and standings is ranking.whole_work and len(stated) > 1:
            continue  # no run did its whole work: nothing is said of its times
        if compared.left_out:
            texts.setdefault(_groups_text(compared.left_out), []).append(what)
    return [f"Not counted in {listed(what)}: {text}." for text, what in texts.items()]


def _groups_text(left_out: Sequence[Repeat]) -> str:
    """Describe runs by how they ended: `asp, 3 runs, cut by stop.patience at 36% of the work`."""
    groups: dict[tuple[str, str], list[Repeat]] = {}
    for repeat in left_out:
        groups.setdefault((repeat.paradigm, repeat.end.how), []).append(repeat)
    texts = [_group_text(paradigm, how, found) for (paradigm, how), found in groups.items()]
    return "; ".join(first_of(texts, MOST_GROUPS, "and {} more groups"))


def _group_text(paradigm: str, how: str, repeats: Sequence[Repeat]) -> str:
    seeds = [f"seed {repeat.seed}" for repeat in repeats]
    who = seeds[0] if len(seeds) == 1 else f"{len(seeds)} runs"
    began = [repeat.end.progress for repeat in repeats if repeat.end.progress]
    if not began:
        return f"{paradigm}, {who}, {how}"
    return f"{paradigm}, {who}, {how} at {_percent_range(began)} of the work"


def _shared_text(ranking: Ranking) -> str:
    most = max(run.shared_share or 0.0 for run in ranking.share_cores)
    total = sum(len(entry.by_seed) for entry in ranking.times.ranked)
    return (
        f"{len(ranking.share_cores)} of {max(total, len(ranking.share_cores))} runs shared cores"
        f" with others for up to {most:.0%} of their time: their seconds measure each other."
        " Run them one at a time (a sweep: sweep.concurrent: 1)."
    )


def lead_text(standings: Standings, leads: str, has: str, unit: str = "") -> str:
    """Say which paradigm is first by a measure, with its value, and how surely.

    Args:
        standings: at least one paradigm has a value.
        leads: `is the first to reach 90.0%:`.
        has: the same of the only paradigm: `reached 90.0% in`.
        unit: of the value, with a space before it.
    """
    value, leader = standings.first.value, standings.leader
    text = with_interval(replace(value, count=1, total=1), standings.measure.form)
    of = "" if value.complete else f" ({value.count} of {value.total} repeats)"
    if len(standings.ranked) == 1:
        return f"{leader.name} {has} {text}{unit}{of}."
    return f"{leader.name} {leads} {text}{unit}{of}. {_how_sure(leader)}"


def _how_sure(leader: Leader) -> str:
    rivals = first_of(leader.doubtful, MOST_RIVALS, "{} more")
    return HOW_SURE.get(leader.sure) or f"It cannot be told apart from {listed(rivals)}."


def _better(final: Standings, name: str) -> list[str]:
    """Return the paradigms with clearly better models than the paradigm `name`."""
    [worse] = (entry for entry in final.ranked if entry.paradigm == name)
    others = (entry for entry in final.ranked if entry is not worse)
    return [better.paradigm for better in others if final.compare(better, worse).is_clear]


def unfinished(collection: Collection) -> str:
    """Say that a sweep has no end yet, and how many of its trials began; "" if it has."""
    sweep = collection.sweep
    if sweep is None or sweep.is_complete:
        return ""
    return (
        f"The sweep still runs, or was killed: {len(sweep.table)} of its trials have begun;"
        " raysync sweep --resume goes on with it."
    )


def search_text(course: SearchCourse | None) -> str:
    """Name the best trial of a search, and the best of each paradigm; "" without a search."""
    if course is None:
        return ""
    best, count = course.best, len(course.trials)
    parts = []
    if best is None:
        parts.append(f"None of the {count} trials of the search did its work, so none is the best.")
    else:
        value = _value_text(course, best)
        parts.append(f"The best of {count} trials of the search: {best.words}: {value}.")
        if len(course.best_of_paradigms) > 1:
            texts = [
                f"{trial.words}: {_value_text(course, trial)} (of {course.tried(paradigm)} trials)"
                for paradigm, trial in course.best_of_paradigms.items()
            ]
            parts.append(f"The best of each paradigm, which are compared: {'; '.join(texts)}.")
    if course.untried:
        names = listed([setting_text(choice) for choice in course.untried])
        parts.append(f"The search never tried {names}.")
    if course.repeated:
        parts.append(f"{course.repeated} trials have the settings of earlier ones.")
    ended: dict[str, list[float]] = {}
    for trial in course.trials:
        if trial.end is None or not trial.is_complete:
            how = "without a record" if trial.end is None else trial.end.how
            ended.setdefault(how, []).append(0.0 if trial.end is None else trial.end.progress)
    for how, progress in ended.items():
        at = _percent_range(progress)
        parts.append(f"{len(progress)} trials cannot be the best: {how} at {at} of the work.")
    return " ".join(parts)


def _percent_range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0%}", f"{max(values):.0%}"
    return low if low == high else f"{low} to {high}"


def _value_text(course: SearchCourse, trial: SearchedTrial) -> str:
    assert trial.value is not None, "a best trial without a value"
    return f"{course.metric.name} {metric_text(course.metric.name, trial.value)}"


def bottlenecks(collection: Collection, scenario: str) -> list[str]:
    """Describe the bottleneck of each paradigm, by its first seed with a known one."""
    groups = collection.scenarios[scenario]
    return describe_bottlenecks(
        {paradigm: [run.record.summary for run in runs] for paradigm, runs in groups.items()}
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
    text = "Computing alone limits it: no link, server, fault or slow worker does."
    if found["without_s"] is not None:
        text = f"{_limit_text(summary)}."
    best = best_change(summary, others or {})
    if best is None:
        return f"{text} No change that was simulated helps by 2%."
    return f"{text} What helps most: {best[0]}, {seconds(best[1])}."


def _limit_text(summary: Mapping[str, Any]) -> str:
    """Name the limit as the cause if it explains most of what is lost, else as one of several."""
    found, now_s = summary["bottleneck"], summary["seconds"]
    computing_s = found.get("computing_s")
    lost_s = 0.0 if computing_s is None else now_s - computing_s
    without = f"{found['what']}: without it the work would take {seconds(found['without_s'])}"
    if now_s - found["without_s"] >= EXPLAINS * lost_s:
        return f"The bottleneck is {without} instead of {seconds(now_s)}"
    return (
        f"{seconds(lost_s)} of {seconds(now_s)} are lost to several causes; the largest is"
        f" {without}"
    )


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


def legend(collection: Collection, *, median: bool = False) -> str:
    """Say what the numbers of the tables are of, and what their intervals are."""
    seeds = provenance.seeds(collection)
    if median:
        return "Values come from the median run by final result; runs without a result rank last."
    if len(seeds) == 1:
        return f"Seed {seeds[0]}: one run a paradigm, so no interval."
    few = len(seeds) <= MOST_SEEDS
    of = ", ".join(map(str, seeds)) if few else f"{seeds[0]} to {seeds[-1]}"
    return (
        f"Means over seeds {of}; ±: half of the 95% interval of the mean (Student's t), where it is"
        " not narrower than the digits shown. (2 of 3): two of three repeats have a value; the mean"
        " is of those."
    )


def resumptions(collection: Collection) -> list[str]:
    """Describe the runs that were resumed, and their losses."""
    is_single = len(collection.runs) == 1
    return [
        _resumption_sentence("The run" if is_single else run.label, run.record.summary)
        for run in collection.runs
        if run.record.summary.get("resumptions")
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
    """Warn of what makes runs of the collection incomparable, or their order doubtful."""
    return [
        *_differing_scenarios(collection),
        *_other_stops(collection),
        *_code_differences(collection),
        *_batch_metrics(collection),
        *_rate_edges(collection),
    ]


def _rate_edges(collection: Collection) -> Iterator[str]:
    """Warn of each leader, by the target or else by the model, at an edge of its rates."""
    for ranking in rank_all(collection):
        standings = ranking.to_target if ranking.target else ranking.final
        leader = None if standings is None else standings.leader.name
        for choice in ranking.rates:
            if choice.label == leader and choice.edge:
                beyond = "lower" if choice.edge == "lowest" else "higher"
                yield (
                    f"{leader} has the {choice.edge} of the {len(choice.labels)} learning rates"
                    f" that it was tried with: a {beyond} one may be better."
                )


def _differing_scenarios(collection: Collection) -> Iterator[str]:
    """Name what differs between the runs of several sweeps or folders."""
    parts = [part for name in collection.scenarios for part in name.split(", ")]
    settings = dict.fromkeys(part.partition("=")[0] for part in parts if "=" in part)
    if len(collection.paths) < 2 or not settings:
        return
    text = f"The runs differ in {listed(list(settings))}, so they are {len(collection.scenarios)}"
    is_apart = all(sum(map(bool, found.values())) < 2 for found in collection.scenarios.values())
    alone = "; none has two paradigms to compare" if is_apart else ""
    yield f"{text} scenarios{alone}."


def _other_stops(collection: Collection) -> Iterator[str]:
    """Name the trials of a resumed sweep that another `stop` than the first could end."""
    if collection.sweep is None:
        return
    stops = Counter(_stop_words(run) for run in collection.runs)
    if len(stops) > 1 and "stop" not in {key.partition(".")[0] for key in collection.sweep.varied}:
        texts = [f"{count} with {stop}" for stop, count in stops.items()]
        yield (
            f"The trials have unequal settings of stop, since the sweep went on with another:"
            f" {listed(texts)}."
        )


def _stop_words(run: CollectedRun) -> str:
    stop = run.record.config.stop
    return "none" if stop is None else stop_text(stop)


def _code_differences(collection: Collection) -> Iterator[str]:
    """Describe the different code of runs with equal settings."""
    described: dict[str, str] = {}
    for run in collection.runs:
        for part, key in ((run.scenario, "task_sha256"), (run.paradigm, "paradigm_sha256")):
            name = code_label(run, key)
            if part.endswith(name):
                described[name] = _code_text(run.record.environment.get("user_code") or {})
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


def first_of(texts: Sequence[str], most: int, more: str) -> list[str]:
    """Return the first texts, and `more` with the number of the rest, if there are any."""
    rest = len(texts) - most
    return [*texts[:most], *([more.format(rest)] if rest > 0 else [])]


def listed(words: Sequence[str]) -> str:
    """Join words: `a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
