"""The tables of README.md, the verdicts on what the paper says below its own, and the numbers in
the prose.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pandas as pd
import yaml
from labtables import Results, by_seed, markdown, mean_cell, ratio, ratio_cell, sweeps_table

from raysync.config import ParadigmChoice
from raysync.paradigms.hybrid import Hybrid
from raysync.results.columns import percent_form, plain_form, ratio_text, seconds_form, share_form
from raysync.results.statistics import Estimate, paired_difference

DATASETS = {
    "MNIST": ("table-4", "table-7", "table-8"),
    "CIFAR-10": ("table-5", "table-9", "table-10"),
    "Fashion-MNIST": ("table-6", "table-11", "table-12"),
}
"""Data set -> its tables: the baselines, the changes to the synchronous one, those to the
asynchronous one."""
BASELINES = {"synchronous": "hybrid-sync", "asynchronous": "hybrid-async"}
SNAPSHOTS = {"worker": "each worker's own pulls", "global": "one snapshot for all"}
ACCURACY, SECONDS = "final_accuracy", "seconds"
ALIKE = {ACCURACY: 0.015, SECONDS: 0.05}
"""The band of what counts as alike: 1.5 points, 5 % of the time; the paper calls 1.3 points and 2.7
% so."""
SAYS = {
    "more accurate": (ACCURACY, 1),
    "less accurate": (ACCURACY, -1),
    "as accurate": (ACCURACY, 0),
    "faster": (SECONDS, -1),
    "slower": (SECONDS, 1),
    "as fast": (SECONDS, 0),
}
"""What a claim says -> the measure, and the sign of the difference; with `no` before it, that it
has not that sign."""
VERDICTS = ("holds", "does not", "too small", "open")
CHOSEN = {
    "table-7": ("synchronous", "num_workers=6, num_workers_ps_update=6, batch_size=64"),
    "table-8": (
        "hybrid: `staleness_tolerance`",
        "staleness_tolerance=10, num_workers=6, batch_size=64",
    ),
    "table-9": ("synchronous", "batch_size=64, lr=0.05"),
    "table-10": (
        "hybrid: `num_workers_ps_update`",
        "lr=0.05, num_workers_ps_update=2, batch_size=64",
    ),
    "table-11": (
        "hybrid: `pull_weights_interval_rule`",
        (
            "batch_size=64, num_workers=4, num_workers_ps_update=4, lr=0.01,"
            " pull_weights_interval_rule=2"
        ),
    ),
    "table-12": (
        "hybrid: `num_workers_ps_update`",
        "num_workers=4, num_workers_ps_update=3, lr=0.01, pull_weights_interval_rule=3",
    ),
}
"""Table -> what the paper's Table 13 calls its best row, and that row."""


@dataclass(frozen=True)
class Row:
    """A row of one of the paper's tables, and the trials that repeat it here."""

    change: str
    """As the paper has it; of the baselines, their name."""
    reading: str
    """Of the interval between pulls, where that makes a difference."""
    trials: pd.DataFrame
    published: dict[str, float]

    @property
    def name(self) -> str:
        """For a table."""
        return f"`{self.change}`{f', {self.reading}' if self.reading else ''}"


# ---- which trials repeat which row ----

Settings = dict[str, float]
"""By the paper's names."""


def settings(paradigm: str, workers: int, batch_size: int, lr: float) -> tuple[Settings, str]:
    """What was set, and how the interval between pulls is read."""
    value = yaml.safe_load(paradigm)
    hybrid = ParadigmChoice.model_validate(
        {"name": value} if isinstance(value, str) else value
    ).make()
    assert isinstance(hybrid, Hybrid), paradigm
    return {
        "num_workers": workers,
        "num_workers_ps_update": workers if hybrid.k == "all" else hybrid.k,
        "staleness_tolerance": float(hybrid.staleness_tolerance),
        "lr": lr,
        "batch_size": batch_size,
        "pull_weights_interval_rule": hybrid.pull_interval,
    }, (SNAPSHOTS[hybrid.snapshot] if hybrid.pull_interval > 1 else "")


def set_in(trial: pd.Series, experiment_lr: float) -> tuple[Settings, str]:
    """The same of a trial."""
    groups = yaml.safe_load(trial.get("config/workers", "[{count: 5}]"))
    return settings(
        trial["config/paradigm"],
        groups[0]["count"],
        int(trial.get("config/batch_size", 128)),
        float(trial.get("config/update.lr", experiment_lr)),
    )


def change_of(text: str) -> Settings:
    """What a row of the paper says it changes."""
    return {
        name: float(value) for name, _, value in (part.partition("=") for part in text.split(", "))
    }


@cache
def rows(results: Results, table: str) -> tuple[Row, ...]:
    """Those of a table, in the paper's order."""
    trials = results.trials(table)
    published = {
        text: {key: value for key, value in row.items() if value is not None}
        for text, row in results.published(table).rows.items()
    }
    if table == baseline_of(table)[0]:
        return tuple(
            Row(name, "", trials[trials.label == label], published[label])
            for name, label in BASELINES.items()
        )
    base, _ = settings(BASELINES[baseline_of(table)[1]], 5, 128, 0.03)
    found = [set_in(trial, 0.03) for _, trial in trials.iterrows()]
    changed = [
        {name: value for name, value in one.items() if value != base[name]} for one, _ in found
    ]
    made = []
    for text, theirs in published.items():
        for reading in ("", *SNAPSHOTS.values()):
            mine = [
                one == change_of(text) and its == reading
                for one, (_, its) in zip(changed, found, strict=True)
            ]
            if any(mine):
                made.append(Row(text, reading, trials[mine], theirs))
    return tuple(made)


def baseline_of(table: str) -> tuple[str, str]:
    """The table with the baselines of a table's data set, and the name of the one that it
    changes.
    """
    [tables] = [tables for tables in DATASETS.values() if table in tables]
    return tables[0], "asynchronous" if table in tables[2:] else "synchronous"


def baseline(results: Results, table: str, name: str) -> Row:
    """Of a table's data set, by its name."""
    [row] = [row for row in rows(results, baseline_of(table)[0]) if row.change == name]
    return row


def baseline_row(results: Results, table: str) -> Row:
    """The one that a table changes."""
    return baseline(results, table, baseline_of(table)[1])


# ---- measured beside published ----


def tables(results: Results) -> dict[str, str]:
    """By the names of their marks."""
    made = {
        "verdicts": verdicts(results),
        "best": best(results),
        "sweeps": sweeps_table(results),
        "frozen": frozen(results),
    }
    for first, *others in DATASETS.values():
        made[first] = measured(results, first)
        for table in others:
            made[table] = measured(results, table)
        for table in (first, *others):
            made[f"claims of {table}"] = claimed(results, table)
    return made


def measured(results: Results, table: str) -> str:
    """A table of the paper, with its baseline above the changes; seconds as ratios to that
    baseline's.
    """
    base, there = baseline_row(results, table), rows(results, table)
    if base not in there:
        there = (base, *there)
    header = [
        "",
        "accuracy, published",
        "measured",
        "seconds, published",
        "in baseline's",
        "measured",
        "in baseline's",
        "staleness mean / max",
        "wait share",
    ]
    return markdown(header, [_cells(row, base) for row in there])


def _cells(row: Row, base: Row) -> list[str]:
    theirs, its = row.published[SECONDS], base.published[SECONDS]
    return [
        row.name,
        f"{row.published[ACCURACY]:.2%}",
        mean_cell(row.trials, ACCURACY, lambda _: ".2%"),
        format(theirs, seconds_form(theirs)),
        ratio_text(theirs / its),
        mean_cell(row.trials, SECONDS, seconds_form),
        ratio_cell(ratio(row.trials, base.trials, SECONDS)),
        (
            f"{mean_cell(row.trials, 'staleness_mean', plain_form)} /"
            f" {row.trials.staleness_max.max():.0f}"
        ),
        format(row.trials.wait_fraction.mean(), share_form(0)),
    ]


# ---- what the paper says ----


@dataclass(frozen=True)
class Verdict:
    """On a claim, in one reading of it."""

    row: Row
    says: str
    than: str
    published: float
    """The difference of accuracies, or the ratio of seconds."""
    measured: Estimate
    verdict: str

    @property
    def measure(self) -> str:
        """What the claim is about."""
        return SAYS[self.says.removeprefix("no ")][0]


@cache
def judged(results: Results, table: str) -> tuple[Verdict, ...]:
    """The verdicts on what the paper says below a table."""
    claims = tomllib.loads((results.folder / "claims.toml").read_text(encoding="utf-8"))[table]
    return tuple(
        _judge(row, claim["is"], baseline(results, table, claim["than"]))
        for claim in claims
        for row in rows(results, table)
        if row.change == claim["change"]
    )


def _judge(row: Row, says: str, than: Row) -> Verdict:
    measure, _ = SAYS[says.removeprefix("no ")]
    ours, theirs = row.published[measure], than.published[measure]
    if measure == ACCURACY:
        one, published, none = _accuracy(row, than), ours - theirs, 0.0
    else:
        one, published, none = ratio(row.trials, than.trials, measure), ours / theirs, 1.0
    return Verdict(row, says, than.change, published, one, word(one, says, none, published))


def word(one: Estimate, says: str, none: float, published: float) -> str:
    """Whether a claim holds, by the whole interval of what was measured, beside the band of what is
    alike.

    Args:
        one: the measured difference of accuracies, or ratio of seconds.
        says: what the claim says. A claimed difference has to leave the band on the side that it
            names.
        none: what `one` is without any difference.
        published: what the paper has. Its difference is too small if it lies within the band: then
            nothing can be shown unless ours leaves the band, or there is no difference at all.
    """
    assert one.low is not None
    assert one.high is not None
    measure, sign = SAYS[says.removeprefix("no ")]
    alike, low, high = ALIKE[measure], one.low - none, one.high - none
    if sign == 0:
        return (
            "holds"
            if -alike <= low and high <= alike
            else "does not"
            if low > alike or high < -alike
            else "open"
        )
    low, high = sorted((sign * low, sign * high))
    if says.startswith("no "):
        return "holds" if high <= alike else "does not" if low > alike else "open"
    if low > alike:
        return "holds"
    if low == high == 0 or high < -alike:
        return "does not"
    if sign * (published - none) <= alike:
        return "too small"
    return "does not" if high <= alike else "open"


def claimed(results: Results, table: str) -> str:
    """The claims below a table, with published and measured differences."""
    lines = [
        [
            (
                f"{one.row.name} is {one.says}{' as' if one.says.startswith('as ') else ' than'}"
                f" {one.than}"
            ),
            difference(one.published, one.measure),
            interval(one.measured, one.measure),
            one.verdict,
        ]
        for one in judged(results, table)
    ]
    return markdown(["the paper says", "published", "measured", "here"], lines)


def difference(value: float, measure: str) -> str:
    """`+0.44` points, or `0.97 x`."""
    return f"{100 * value:+.2f}" if measure == ACCURACY else f"{ratio_text(value)} x"


def interval(one: Estimate, measure: str) -> str:
    """With the 95 % interval, where it is wider than the digits."""
    assert one.mean is not None
    assert one.low is not None
    assert one.high is not None
    mean_text, low, high = (difference(value, measure) for value in (one.mean, one.low, one.high))
    return (
        mean_text
        if low == high
        else f"{mean_text} ({low.removesuffix(' x')} to {high.removesuffix(' x')})"
    )


def all_verdicts(results: Results) -> Iterator[tuple[str, Verdict]]:
    """With the data set of each."""
    return (
        (name, one)
        for name, tables in DATASETS.items()
        for table in tables
        for one in judged(results, table)
    )


def verdicts(results: Results) -> str:
    """How many claims hold."""
    found = pd.DataFrame(
        [(name, one.measure, one.verdict) for name, one in all_verdicts(results)],
        columns=["data", "measure", "verdict"],
    )
    lines = []
    for name in DATASETS:
        for measure, text in ((ACCURACY, "accuracy"), (SECONDS, "time")):
            there = found[(found.data == name) & (found.measure == measure)].verdict
            lines.append(
                [
                    name,
                    text,
                    str(len(there)),
                    *(str((there == verdict).sum()) for verdict in VERDICTS),
                ]
            )
    lines.append(
        [
            "all",
            "",
            str(len(found)),
            *(str((found.verdict == verdict).sum()) for verdict in VERDICTS),
        ]
    )
    return markdown(["data", "about", "claims", *VERDICTS], lines)


def best(results: Results) -> str:
    """The rows that the paper calls the best, beside their baseline, and those that are the best
    here.
    """
    lines = []
    for table, (kind, change) in CHOSEN.items():
        there = rows(results, table)
        base = baseline_row(results, table)
        first = max(there, key=lambda row: row.trials[ACCURACY].mean())
        soonest = min(there, key=lambda row: row.trials[SECONDS].mean())
        lines += [
            [
                table.removeprefix("table-"),
                row.name,
                kind,
                interval(_accuracy(row, base), ACCURACY),
                interval(ratio(row.trials, base.trials, SECONDS), SECONDS),
                with_accuracy(first),
                with_accuracy(soonest),
            ]
            for row in there
            if row.change == change
        ]
    return markdown(
        [
            "table",
            "the paper's best row",
            "called",
            "accuracy here, beside its baseline's",
            "time here, in its baseline's",
            "most accurate here",
            "fastest here",
        ],
        lines,
    )


def with_accuracy(row: Row) -> str:
    """Its name and accuracy."""
    return f"{row.name} ({row.trials[ACCURACY].mean():.1%})"


def computing(row: Row, base: Row) -> float:
    """The seconds that workers do not wait, in the baseline's: those of a laptop on which nobody's
    core is idle.
    """
    ours, theirs = (
        float((one.trials[SECONDS] * (1 - one.trials.wait_fraction)).mean()) for one in (row, base)
    )
    return ours / theirs


def _accuracy(row: Row, than: Row) -> Estimate:
    return paired_difference(by_seed(row.trials, ACCURACY), by_seed(than.trials, ACCURACY))


# ---- and besides ----


def frozen(results: Results) -> str:
    """Fashion-MNIST, evaluated with the workers' batch-norm statistics, and with those that the
    server began with.
    """
    lines = []
    for name in BASELINES:
        for lr, table in (
            (0.03, "table-6"),
            (0.01, "table-11" if name == "synchronous" else "table-12"),
        ):
            row = next(
                row
                for row in rows(results, table)
                if row.change == (name if table == "table-6" else f"lr={lr:g}")
            )
            cells = [
                mean_cell(trials, ACCURACY, lambda _: ".2%")
                for trials in (row.trials, frozen_trials(results, name, lr))
            ]
            lines.append([name, f"{lr:g}", f"{row.published[ACCURACY]:.2%}", *cells])
    return markdown(
        ["baseline", "lr", "published", "with the workers' statistics", "with those of the start"],
        lines,
    )


def frozen_trials(results: Results, name: str, lr: float) -> pd.DataFrame:
    """The repeats of a baseline in table-6-frozen.yaml."""
    trials = results.trials("table-6-frozen")
    return trials[(trials.label == BASELINES[name]) & (trials["config/update.lr"] == lr)]


def facts(results: Results) -> dict[str, str]:
    """By the names of their marks."""
    found = {}
    for tables in DATASETS.values():
        for table in tables:
            for row in rows(results, table):
                name = f"{table}, {row.change}" + (f", {row.reading}" if row.reading else "")
                found[f"accuracy of {name}"] = mean_cell(row.trials, ACCURACY, percent_form)
                found[f"lead of {name}"] = f"{row.trials.lead_max.max():.0f}"
                found[f"computing in {name}"] = ratio_text(
                    computing(row, baseline_row(results, table))
                )
            for one in judged(results, table):
                name = f"{table}, {one.row.change}" + (
                    f", {one.row.reading}" if one.row.reading else ""
                )
                found[f"{one.measure} of {name} and {one.than}"] = interval(
                    one.measured, one.measure
                )
    two, one = (
        next(row for row in rows(results, "table-10") if row.change == change)
        for change in ("lr=0.05, num_workers_ps_update=2", "lr=0.05")
    )
    found["two pushes, lr 0.05"] = interval(_accuracy(two, one), ACCURACY)
    found["two pushes, lr 0.05, and asynchronous"] = interval(
        _accuracy(two, baseline_row(results, "table-10")), ACCURACY
    )
    every = [one for _, one in all_verdicts(results)]
    for verdict in VERDICTS:
        found[f"claims, {verdict}"] = str(sum(one.verdict == verdict for one in every))
    found["claims"] = str(len(every))
    found["claims on accuracy"] = str(sum(one.measure == ACCURACY for one in every))
    found["claims on accuracy, holds"] = str(
        sum(one.measure == ACCURACY and one.verdict == "holds" for one in every)
    )
    for name in BASELINES:
        for lr in (0.03, 0.01):
            found[f"frozen, {name}, {lr:g}"] = mean_cell(
                frozen_trials(results, name, lr), ACCURACY, percent_form
            )
    return found
