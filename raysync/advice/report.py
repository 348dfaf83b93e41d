"""The answer as sentences, as a table, as a page, as Markdown and as JSON; and its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from raysync.advice.advise import Advice, Changed
from raysync.advice.candidates import Candidate
from raysync.advice.figures import figures_of
from raysync.advice.snippets import snippets
from raysync.results.columns import (
    WHOLE_WORK,
    count_form,
    percent_form,
    plain_form,
    ratio_text,
    share_form,
    with_interval,
)
from raysync.results.markdown import plain
from raysync.results.page import figure_json, render
from raysync.results.ranking import Comparison, Standings
from raysync.results.statistics import CONFIDENCE
from raysync.training.evaluation import OF_THE_TEST_SET

SCHEMA = 1
ADVISED, ADVISED_MODEL, PAGE, MARKDOWN, JSON = (
    "advised.yaml",
    "advised-final.yaml",
    "advice.html",
    "advice.md",
    "advice.json",
)
LEGEND = (
    "±: half of the 95% interval of the mean over seeds. All have the same seeds, so the same"
    " batches, jitter and faults, and are compared in pairs."
)


@dataclass(frozen=True)
class Column:
    """A column of the table of the few best."""

    heading: str
    about: str
    show: Callable[[str], str]
    """It returns the cell of the candidate with that label."""


def columns_of(advice: Advice) -> list[Column]:
    """Return the columns, the ones that decide first."""
    columns = []
    for standings in (advice.time, advice.final):
        if standings is not None:
            columns += list(_of_standings(standings))
    columns += [
        Column("wait share", "of the workers' time, between push and release",
               lambda label: _mean(advice, label, "wait_fraction", share_form)),
        Column("staleness", "versions between the one a gradient was computed on and its own, mean",
               lambda label: _mean(advice, label, "staleness_mean", plain_form)),
        Column("max", "the largest staleness",
               lambda label: _mean(advice, label, "staleness_max", count_form)),
        Column("lead max", "the largest lead at a release, in clocks",
               lambda label: _mean(advice, label, "lead_max", count_form)),
    ]  # fmt: skip
    if any(advice.mean(label, "dropped") for label in advice.contenders):
        columns.append(
            Column("dropped", "pushes that were computed and not applied",
                   lambda label: _mean(advice, label, "dropped", count_form))
        )  # fmt: skip
    return columns


def _of_standings(standings: Standings) -> Iterator[Column]:
    measure = standings.measure
    values = {each.paradigm: each.value for each in standings.ranked}

    def value(label: str) -> str:
        one = values[label]
        return with_interval(one.mean, one.low, one.high, one.count, one.total, measure.form)

    yield Column(measure.heading, measure.about, value)
    versus = {each.other.paradigm: each for each in standings.behind}

    def against(label: str) -> str:
        return "-" if label not in versus else _interval(versus[label])

    how = "times that of the best" if measure.compared_by == "ratio" else "worse than the best"
    yield Column("behind the best", f"{how}, with its 95% interval over common seeds", against)


def _interval(versus: Comparison) -> str:
    show = _show_ratio if versus.equal == 1.0 else _show_difference
    if versus.by.mean is None:
        return "?"
    if versus.by.low is None or versus.by.high is None:
        return show(versus.by.mean)
    return f"{show(versus.by.mean)} ({show(versus.by.low)} to {show(versus.by.high)})"


def _show_ratio(value: float) -> str:
    return f"×{ratio_text(value)}"


def _show_difference(value: float) -> str:
    return f"{round(value, 6) + 0.0:.3g}"


def _mean(advice: Advice, label: str, key: str, form: Callable[[float], str]) -> str:
    value = advice.mean(label, key)
    return "-" if value is None else format(value, form(value))


def alike(standings: Standings) -> list[str]:
    """Return the labels that cannot be told apart from the best, with it: those whose paired
    interval does not leave out that they are as good.
    """
    others = [
        versus.other.paradigm
        for versus in standings.behind
        if versus.other.value.count and not versus.clear
    ]
    return [standings.first.paradigm, *others]


def sentences(advice: Advice) -> list[str]:
    """Return the answer in words."""
    parts = [_of_time(advice)]
    if advice.final is not None:
        parts.append(_of_model(advice, advice.final))
        parts.append(_tested(advice))
    parts.append(_costs(advice, advice.best.label))
    parts += [_of_change(advice, changed) for changed in advice.changed]
    return [part for part in parts if part]


def _of_time(advice: Advice) -> str:
    standings, first = advice.time, advice.time.first
    target = advice.world.plan.experiment.target
    measured = standings.measure is not WHOLE_WORK and target is not None
    what = f"reaches {target.words}" if measured and target else "finishes its work"
    takes = f"{standings.measure.show(first.value.mean or 0.0)} s"
    if first.value.count < first.value.total:
        takes += f", in {first.value.count} of {first.value.total} runs"
    return f"{first.paradigm} {what} first: {takes}. {_how_sure(advice, standings)}"


def _of_model(advice: Advice, standings: Standings) -> str:
    first = standings.first
    if first.value.mean is None:
        return "No run has a final model."
    value = standings.measure.show(first.value.mean)
    name = advice.world.plan.primary.name
    return (
        f"{first.paradigm} has the best final {name} on the validation set: {value}."
        f" {_how_sure(advice, standings)}"
    )


def _how_sure(advice: Advice, standings: Standings) -> str:
    if len(standings.ranked) == 1:
        return "There is nothing to compare it with."
    if len(advice.seeds) < 2:
        return "One seed cannot say how sure that is."
    same = alike(standings)
    if len(same) == 1:
        return f"It is ahead of each other one in {len(advice.seeds)} paired runs, surely."
    names = ", ".join(same[:-1]) + f" and {same[-1]}"
    return f"{NUMBERS.get(len(same), str(len(same)))} cannot be told apart: {names}."


NUMBERS = {2: "These two", 3: "These three", 4: "These four", 5: "These five", 6: "These six"}


def _tested(advice: Advice) -> str:
    value = advice.mean(advice.best.label, OF_THE_TEST_SET)
    if value is None:
        return ""
    primary = advice.world.plan.primary
    shown = format(value, percent_form(value)) if primary.name == "accuracy" else f"{value:.4g}"
    return (
        f"The final {primary.name} of {advice.best.label} on the test set is {shown}; nothing was"
        " chosen on that set."
    )


def _costs(advice: Advice, label: str) -> str:
    wait = _mean(advice, label, "wait_fraction", share_form)
    stale = _mean(advice, label, "staleness_mean", plain_form)
    shares = advice.shares(label)
    own = advice.world.plan.experiment.batch_sizes
    sizes = (
        ""
        if shares == own
        else " Its batches end at "
        + ", ".join(f"{size} ({slot})" for slot, size in list(shares.items())[:8])
        + (", ..." if len(shares) > 8 else "")
        + "."
    )
    return (
        f"With {label}, workers wait for {wait} of their time, and a gradient is {stale} versions"
        f" old.{sizes}"
    )


def _of_change(advice: Advice, changed: Changed) -> str:
    """Say whether a change of the cluster changes the answer."""
    best, today = changed.standings.first, advice.best.label
    what = changed.change.what
    what = what[0].upper() + what[1:]
    show = advice.time.measure.show
    speed = _mean_of(advice, today) / changed.now_s
    same = best.paradigm == today or today in alike(changed.standings)
    if same:
        return (
            f"{what}, {today} stays among the best: {show(changed.now_s)} s are predicted,"
            f" {ratio_text(speed)} times as fast as now."
        )
    return (
        f"{what}, the answer would be {best.paradigm}: {show(best.value.mean or 0.0)} s are"
        f" predicted, and {show(changed.now_s)} s with {today}."
    )


def _mean_of(advice: Advice, label: str) -> float:
    return next(each.value.mean or 0.0 for each in advice.time.ranked if each.paradigm == label)


def basis(advice: Advice) -> Iterator[str]:
    """Yield what the answer rests on, and what it does not say."""
    yield from advice.remarks
    count = len(advice.contenders)
    seeds = ", ".join(map(str, advice.seeds))
    yield (
        f"{len(advice.timed)} candidates were timed on the virtual clock;"
        f" {count} went on to the comparison, with seed{'s' * (len(advice.seeds) > 1)} {seeds}."
        f" It took {advice.used_s / 60:.2g} of {advice.options.budget_s / 60:g} minutes."
    )
    if advice.tuning is not None:
        rates = ", ".join(f"{rate:g}" for rate in sorted(advice.tuning.rates))
        yield (
            f"Learning rates: the same for each finalist ({rates or 'that of the file'}), on a seed"
            " of their own; the best for the target, and the best for the final metric, both on the"
            " validation set."
        )
    else:
        yield "Nothing was trained: what staleness and dropped gradients cost a model is not known."
    if advice.changed:
        yield (
            "Changes of the cluster are timed, not trained: the samples until the target are taken"
            " to stay, as if nothing but the pace changed."
        )
    yield (
        "Each interval is for one pair alone; of many, one in twenty would mislead by chance."
        " An experiment's step times and network are taken as they are given."
    )


def rows_of(advice: Advice) -> list[str]:
    """Return the labels in the order of the table."""
    return [each.paradigm for each in advice.time.ranked]


def markdown(advice: Advice) -> str:
    """Return the answer as Markdown."""
    columns = columns_of(advice)
    frame = pd.DataFrame(
        [[label, *(column.show(label) for column in columns)] for label in rows_of(advice)],
        columns=["candidate", *(column.heading for column in columns)],
    )
    table = frame.map(lambda text: plain(text).replace("|", "\\|"))
    parts = [
        f"# Advice for {plain(advice.world.asked.name)}",
        *map(plain, sentences(advice)),
        str(table.to_markdown(index=False, disable_numparse=True)),
        LEGEND,
        "\n".join(f"- {plain(sentence)}" for sentence in basis(advice)),
    ]
    return "\n\n".join(parts) + "\n"


def html(advice: Advice) -> str:
    """Return the answer as a page that loads nothing from the network."""
    labels = list(advice.contenders)
    columns = columns_of(advice)
    asked = advice.world.asked
    return render(
        "raysync.advice",
        name=f"Advice for {asked.name}",
        title=f"{asked.subject}, {asked.worker_count} workers",
        answer=sentences(advice),
        columns=columns,
        rows=[
            {
                "label": label,
                "index": labels.index(label),
                "cells": [column.show(label) for column in columns],
            }
            for label in rows_of(advice)
        ],
        legend=LEGEND,
        paradigms=labels,
        figures=[(each, Markup(figure_json(each))) for each in figures_of(advice)],
        basis=list(basis(advice)),
    )


def as_json(advice: Advice) -> str:
    """Return everything as JSON."""
    return json.dumps(_plain(advice), indent=2, allow_nan=False)


def _plain(advice: Advice) -> dict[str, Any]:
    return {
        "advice": SCHEMA,
        "experiment": advice.world.asked.name,
        "confidence": CONFIDENCE,
        "trained": advice.trained,
        "seeds": advice.seeds,
        "budget_s": advice.options.budget_s,
        "used_s": advice.used_s,
        "answer": sentences(advice),
        "basis": list(basis(advice)),
        "time": _plain_standings(advice.time),
        "final": None if advice.final is None else _plain_standings(advice.final),
        "candidates": [
            {
                **_plain_candidate(candidate),
                "means": {
                    key: advice.mean(label, key)
                    for key in ("wait_fraction", "staleness_mean", "staleness_max", "lead_max",
                                "dropped", "seconds")
                },
                "shares": advice.shares(label),
            }
            for label, candidate in advice.contenders.items()
        ],
        "timed": [
            {
                **_plain_candidate(each.candidate),
                "seconds": each.seconds,
                "staleness_mean": each.staleness,
                "wait_fraction": each.mean("wait_fraction"),
            }
            for each in advice.timed
        ],
        "changes": [
            {"what": each.change.what, "best": each.best, "todays_best_s": each.now_s,
             "time": _plain_standings(each.standings)}
            for each in advice.changed
        ],
    }  # fmt: skip


def _plain_candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "label": candidate.label,
        "paradigm": {"name": candidate.choice.name, **candidate.choice.parameters},
        "servers": None if candidate.servers is None else list(candidate.servers),
        "lr": candidate.lr,
    }


def _plain_standings(standings: Standings) -> dict[str, Any]:
    return {
        "measure": standings.measure.key,
        "alike": alike(standings),
        "ranked": [
            {"label": each.paradigm, "mean": each.value.mean, "low": each.value.low,
             "high": each.value.high, "count": each.value.count, "total": each.value.total}
            for each in standings.ranked
        ],
        "behind": [
            {"label": each.other.paradigm, "by": each.by.mean, "low": each.by.low,
             "high": each.by.high, "equal": each.equal, "clear": each.clear}
            for each in standings.behind
        ],
    }  # fmt: skip


def files_of(advice: Advice) -> dict[str, str]:
    """Return the name of each file of an answer -> its text.

    The model of a second one is advised where the best for the final metric is surely better than
    the best for the time.
    """
    best = advice.best
    experiment = advice.world.advised(best)
    files = {
        ADVISED: experiment.to_yaml(),
        PAGE: html(advice),
        MARKDOWN: markdown(advice),
        JSON: as_json(advice) + "\n",
    }
    model = advice.best_model
    if model is not None and advice.final is not None and best.label not in alike(advice.final):
        files[ADVISED_MODEL] = advice.world.advised(model).to_yaml()
    if best.is_synchronous:
        files |= snippets(experiment, best, advice.shares(best.label))
    return files


def write(advice: Advice, folder: Path) -> list[Path]:
    """Write the files of an answer; those of an earlier one that this one does not have go."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ADVISED_MODEL).unlink(missing_ok=True)
    for old in folder.glob("advised_*.py"):
        old.unlink()
    paths = []
    for name, text in files_of(advice).items():
        path = folder / name
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        paths.append(path)
    return paths
