"""The tables of notes.md, the verdicts on what the paper says below its own, and the numbers in
the prose of both pages.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import sqrt

import pandas as pd
import yaml
from labtables import (
    Results,
    by_seed,
    markdown,
    mean_cell,
    ratio,
    ratio_cell,
    sweeps_table,
    tabulate,
)
from scipy.stats import norm

from raysync.config import ParadigmChoice
from raysync.paradigms.hybrid import Hybrid
from raysync.results.columns import percent_form, plain_form, ratio_text, seconds_form
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
"""The band in which values count as alike: 1.5 points, 5 % of the time; the paper calls 1.3 points
and 2.7 % alike."""
SAYS = {
    "more accurate": (ACCURACY, 1),
    "less accurate": (ACCURACY, -1),
    "as accurate": (ACCURACY, 0),
    "faster": (SECONDS, -1),
    "slower": (SECONDS, 1),
    "as fast": (SECONDS, 0),
}
"""The words of a claim -> the measure, and the sign of the difference; with `no` before them, the
difference does not have that sign."""
EVALUATED, TEST_IMAGES, RUNS = 1152, 10_000, 10
"""The authors' program evaluates nine random batches of 128 test images; its figures are means of
ten runs."""
REPRODUCES, ASSUMED, DOES_NOT, UNDECIDED, NOTHING, CANNOT = VERDICTS = (
    "reproduces",
    "by assumption",
    "does not",
    "undecided",
    "nothing to reproduce",
    "cannot be expressed",
)
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
"""Table -> the name of its best row in the paper's Table 13, and that row."""


@dataclass(frozen=True)
class Row:
    """A row of one of the paper's tables, and the trials that repeat it here."""

    change: str
    """The change in the paper's words; of a baseline, its name."""
    reading: str
    """The reading of the interval between pulls, where that makes a difference."""
    trials: pd.DataFrame
    published: dict[str, float]

    @property
    def name(self) -> str:
        """Its name in a table."""
        reading = f", {self.reading}" if self.reading else ""
        return f"`{self.change}`{reading}"


# ---- which trials repeat which row ----

Settings = dict[str, float]
"""The paper's name of a setting -> its value."""


def settings(paradigm: str, workers: int, batch_size: int, lr: float) -> tuple[Settings, str]:
    """Return what was set, and how the interval between pulls is read."""
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
    """Return the same for a trial."""
    groups = yaml.safe_load(trial.get("config/workers", "[{count: 5}]"))
    return settings(
        trial["config/paradigm"],
        groups[0]["count"],
        int(trial.get("config/batch_size", 128)),
        float(trial.get("config/update.lr", experiment_lr)),
    )


def change_of(text: str) -> Settings:
    """Return the settings that a row of the paper changes."""
    return {
        name: float(value) for name, _, value in (part.partition("=") for part in text.split(", "))
    }


@cache
def rows(results: Results, table: str) -> tuple[Row, ...]:
    """Return the rows of a table, in the paper's order."""
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
    trial_settings = [set_in(trial, 0.03) for _, trial in trials.iterrows()]
    changed = [
        {name: value for name, value in values.items() if value != base[name]}
        for values, _ in trial_settings
    ]
    repeated = []
    for text, theirs in published.items():
        for reading in ("", *SNAPSHOTS.values()):
            matches = [
                change == change_of(text) and its == reading
                for change, (_, its) in zip(changed, trial_settings, strict=True)
            ]
            if any(matches):
                repeated.append(Row(text, reading, trials[matches], theirs))
    return tuple(repeated)


def baseline_of(table: str) -> tuple[str, str]:
    """Return the table with the baselines of a table's data set, and the name of the baseline that
    it changes.
    """
    [tables] = [tables for tables in DATASETS.values() if table in tables]
    return tables[0], "asynchronous" if table in tables[2:] else "synchronous"


def baseline(results: Results, table: str, name: str) -> Row:
    """Return a baseline of a table's data set by its name."""
    [row] = [row for row in rows(results, baseline_of(table)[0]) if row.change == name]
    return row


def baseline_row(results: Results, table: str) -> Row:
    """Return the baseline that a table changes."""
    return baseline(results, table, baseline_of(table)[1])


# ---- measured beside published ----


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    texts = {
        "verdicts": verdicts(results),
        "best": best(results),
        "sweeps": sweeps_table(results),
        "frozen": frozen(results),
        "as run": as_run(results),
    }
    for first, *others in DATASETS.values():
        texts[first] = measured(results, first)
        for table in others:
            texts[table] = measured(results, table)
        for table in (first, *others):
            texts[f"claims of {table}"] = claimed(results, table)
    return texts


def measured(results: Results, table: str) -> str:
    """Tabulate a table of the paper, with its baseline above the changes; seconds as ratios to that
    baseline's.
    """
    base, shown_rows = baseline_row(results, table), rows(results, table)
    if base not in shown_rows:
        shown_rows = (base, *shown_rows)
    return tabulate(
        {
            "": row.name,
            "accuracy, published": f"{row.published[ACCURACY]:.2%}",
            "measured": mean_cell(row.trials, ACCURACY, ".2%"),
            "seconds, published": ratio_text(row.published[SECONDS]),
            "in baseline's": ratio_text(row.published[SECONDS] / base.published[SECONDS]),
            "measured ": mean_cell(row.trials, SECONDS, seconds_form),
            "in baseline's ": ratio_cell(ratio(row.trials, base.trials, SECONDS)),
            "staleness mean / max": (
                f"{mean_cell(row.trials, 'staleness_mean', plain_form)} /"
                f" {row.trials.staleness_max.max():.0f}"
            ),
            "wait share": f"{row.trials.wait_fraction.mean():.0%}",
        }
        for row in shown_rows
    )


# ---- what the paper says ----


@dataclass(frozen=True)
class Verdict:
    """The verdict on a claim, in one reading of it."""

    row: Row
    says: str
    than: str
    published: float
    """The difference of accuracies, or the ratio of seconds."""
    measured: Estimate
    noise: float
    """The smallest published difference that its evaluation cannot explain."""
    verdict: str

    @property
    def measure(self) -> str:
        """The measure that the claim is about."""
        return SAYS[self.says.removeprefix("no ")][0]

    @property
    def comparison(self) -> str:
        """The words of the claim, such as `as fast as asynchronous`."""
        return f"{self.says} {'as' if self.says.startswith('as ') else 'than'} {self.than}"


@cache
def judged(results: Results, table: str) -> tuple[Verdict, ...]:
    """Return the verdicts on what the paper says below a table."""
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
        value, published, none = _accuracy(row, than), ours - theirs, 0.0
    else:
        value, published, none = ratio(row.trials, than.trials, measure), ours / theirs, 1.0
    least = noise(ours, theirs) if measure == ACCURACY else 0.0
    verdict = word(value, says, none, published, least)
    if verdict == REPRODUCES and value.low == value.high == none:
        verdict = ASSUMED  # the same run: the change never acts in this model
    elif measure == SECONDS:
        verdict = _of_the_clock(row, says, verdict)
    return Verdict(row, says, than.change, published, value, least, verdict)


def noise(ours: float, theirs: float) -> float:
    """Return half of the 95 % interval that a difference of two published accuracies has because
    each run evaluates some of the test images only.
    """
    binomial = sum(accuracy * (1 - accuracy) for accuracy in (ours, theirs)) / EVALUATED
    return float(norm.ppf(0.975)) * sqrt(binomial * (1 - EVALUATED / TEST_IMAGES) / RUNS)


def _of_the_clock(row: Row, says: str, verdict: str) -> str:
    """Return the verdict on a claim about time, where the model of the laptop decides it."""
    changed = set(change_of(row.change)) if row.change not in BASELINES else set()
    if changed == {"lr"} and verdict == DOES_NOT:
        return CANNOT  # nothing in the clock depends on it
    assumed = (
        {"num_workers", "batch_size"} & changed  # less work
        or "lr" in changed  # which costs nothing
        or (says == "slower" and "num_workers_ps_update" in changed)  # a core that waits is idle
    )
    if verdict == REPRODUCES and assumed:
        return ASSUMED
    return verdict


def word(value: Estimate, says: str, none: float, published: float, least: float = 0.0) -> str:
    """Judge a claim by the whole interval of what was measured and the band of what is alike.

    Args:
        value: the measured difference of accuracies, or ratio of seconds.
        says: what the claim says. A claimed difference has to leave the band on the side that it
            names; it does not reproduce where the interval excludes half of the published one.
        none: the value without any difference.
        published: the paper's value. If its difference lies within the band, there is nothing to
            reproduce unless ours leaves it, or there is no difference at all.
        least: the smallest published difference that its own noise cannot explain.
    """
    assert value.low is not None
    assert value.high is not None
    measure, sign = SAYS[says.removeprefix("no ")]
    alike, low, high = ALIKE[measure], value.low - none, value.high - none
    if abs(published - none) < least:
        return NOTHING
    if sign == 0:
        if -alike <= low and high <= alike:
            return REPRODUCES
        return DOES_NOT if low > alike or high < -alike else UNDECIDED
    low, high = sorted((sign * low, sign * high))
    effect = sign * (published - none)
    if says.startswith("no "):
        if high <= alike:
            return REPRODUCES
        return DOES_NOT if low > alike else UNDECIDED
    if low > alike:
        return REPRODUCES
    if low == high == 0 or high < -alike:
        return DOES_NOT
    if effect <= alike:
        return NOTHING
    return DOES_NOT if high <= max(alike, effect / 2) else UNDECIDED


def claimed(results: Results, table: str) -> str:
    """Tabulate the claims below a table, with published and measured differences."""
    return tabulate(
        {
            "the paper says": f"{claim.row.name} is {claim.comparison}",
            "published": difference(claim.published, claim.measure),
            "measured": interval(claim.measured, claim.measure),
            "here": claim.verdict,
        }
        for claim in judged(results, table)
    )


def difference(value: float, measure: str) -> str:
    """Return `+0.44` points, or `0.97 x`."""
    return f"{100 * value:+.2f}" if measure == ACCURACY else f"{ratio_text(value)} x"


def interval(value: Estimate, measure: str) -> str:
    """Return a difference with its 95 % interval, where that is wider than the digits."""
    assert value.mean is not None
    assert value.low is not None
    assert value.high is not None
    mean_text, low, high = (difference(end, measure) for end in (value.mean, value.low, value.high))
    if low == high:
        return mean_text
    return f"{mean_text} ({low.removesuffix(' x')} to {high.removesuffix(' x')})"


def all_verdicts(results: Results) -> Iterator[tuple[str, Verdict]]:
    """Yield every verdict, with its data set."""
    return (
        (name, claim)
        for name, tables in DATASETS.items()
        for table in tables
        for claim in judged(results, table)
    )


def verdicts(results: Results) -> str:
    """Tabulate the verdicts."""
    found = list(all_verdicts(results))
    parts = {
        (name, text): [one.verdict for data, one in found if (data, one.measure) == (name, measure)]
        for name in DATASETS
        for measure, text in ((ACCURACY, "accuracy"), (SECONDS, "time"))
    } | {("all", ""): [one.verdict for _, one in found]}
    return tabulate(
        {"data": data, "about": about, "claims": len(part)}
        | {verdict: part.count(verdict) for verdict in VERDICTS}
        for (data, about), part in parts.items()
    )


def best(results: Results) -> str:
    """Tabulate the rows that the paper calls the best, beside their baseline, and those that are
    the best here.
    """
    lines = []
    for table, (kind, change) in CHOSEN.items():
        candidates = rows(results, table)
        base = baseline_row(results, table)
        first = max(candidates, key=lambda row: row.trials[ACCURACY].mean())
        soonest = min(candidates, key=lambda row: row.trials[SECONDS].mean())
        lines += [
            {
                "table": table.removeprefix("table-"),
                "the paper's best row": row.name,
                "called": kind,
                "accuracy here, beside its baseline's": interval(_accuracy(row, base), ACCURACY),
                "time here, in its baseline's": interval(
                    ratio(row.trials, base.trials, SECONDS), SECONDS
                ),
                "most accurate here": with_accuracy(first),
                "fastest here": with_accuracy(soonest),
            }
            for row in candidates
            if row.change == change
        ]
    return tabulate(lines)


def with_accuracy(row: Row) -> str:
    """Return the name and accuracy of a row."""
    return f"{row.name} ({row.trials[ACCURACY].mean():.1%})"


def computing(row: Row, base: Row) -> float:
    """Return the seconds in which workers do not wait, in the baseline's: those of a laptop whose
    cores are never idle.
    """
    ours, theirs = (
        float((each.trials[SECONDS] * (1 - each.trials.wait_fraction)).mean())
        for each in (row, base)
    )
    return ours / theirs


def _accuracy(row: Row, than: Row) -> Estimate:
    return paired_difference(by_seed(row.trials, ACCURACY), by_seed(than.trials, ACCURACY))


# ---- and besides ----


def frozen(results: Results) -> str:
    """Tabulate Fashion-MNIST, evaluated with the workers' batch-norm statistics, and with those
    that the server began with.
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
            lines.append(
                {
                    "baseline": name,
                    "lr": f"{lr:g}",
                    "published": f"{row.published[ACCURACY]:.2%}",
                    "with the workers' statistics": mean_cell(row.trials, ACCURACY, ".2%"),
                    "with those of the start": mean_cell(
                        frozen_trials(results, name, lr), ACCURACY, ".2%"
                    ),
                }
            )
    return tabulate(lines)


def as_run_trials(results: Results, name: str) -> pd.DataFrame:
    """Return the repeats of a baseline in table-6-300.yaml, with `late`: the accuracy at 98 %."""
    trials, curves = results.trials("table-6-300"), results.curves("table-6-300")
    late = curves[curves.progress.between(0.975, 0.985)].set_index("trial").accuracy
    trials = trials[trials.label == BASELINES[name]]
    return trials.assign(late=trials.trial.map(late))


def as_run(results: Results) -> str:
    """Tabulate Table 6 with frozen statistics, 300 iterations and 1,152 images at 98 %."""
    lines = []
    for row in rows(results, "table-6"):
        trials = as_run_trials(results, row.change)
        cells = [mean_cell(trials, key, lambda _: ".1%") for key in ("late", ACCURACY)]
        spread = f"{trials.late.min():.0%} to {trials.late.max():.0%}"
        lines.append([row.change, f"{row.published[ACCURACY]:.1%}", cells[0], spread, cells[1]])
    return markdown(
        [
            "baseline",
            "published",
            "at 98 %, 1,152 images",
            "smallest to largest",
            "at the end, 10,000 images",
        ],
        lines,
    )


def scatter(results: Results, table: str) -> dict[str, float]:
    """Return the standard deviation of accuracies at the last five marks within a run, and of the
    final ones between the seeds of a row: root mean squares.
    """
    curves, finals = results.curves(table), rows(results, table)
    late = curves[curves.progress < 1].groupby("trial").tail(5).groupby("trial").accuracy.var()
    between = pd.Series([row.trials[ACCURACY].var() for row in finals])
    return {"within a run": sqrt(late.mean()), "between seeds": sqrt(between.mean())}


def frozen_trials(results: Results, name: str, lr: float) -> pd.DataFrame:
    """Return the repeats of a baseline in table-6-frozen.yaml."""
    trials = results.trials("table-6-frozen")
    return trials[(trials.label == BASELINES[name]) & (trials["config/update.lr"] == lr)]


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    cells = {}
    for tables in DATASETS.values():
        for table in tables:
            for row in rows(results, table):
                name = f"{table}, {row.change}" + (f", {row.reading}" if row.reading else "")
                cells[f"accuracy of {name}"] = mean_cell(row.trials, ACCURACY, percent_form)
                cells[f"lead of {name}"] = f"{row.trials.lead_max.max():.0f}"
                cells[f"computing in {name}"] = ratio_text(
                    computing(row, baseline_row(results, table))
                )
            for claim in judged(results, table):
                name = f"{table}, {claim.row.change}" + (
                    f", {claim.row.reading}" if claim.row.reading else ""
                )
                cells[f"{claim.measure} of {name} and {claim.than}"] = interval(
                    claim.measured, claim.measure
                )
    two_pushes, one_push = (
        next(row for row in rows(results, "table-10") if row.change == change)
        for change in ("lr=0.05, num_workers_ps_update=2", "lr=0.05")
    )
    cells["two pushes, lr 0.05"] = interval(_accuracy(two_pushes, one_push), ACCURACY)
    cells["two pushes, lr 0.05, and asynchronous"] = interval(
        _accuracy(two_pushes, baseline_row(results, "table-10")), ACCURACY
    )
    claims = [claim for _, claim in all_verdicts(results)]
    accuracies = [claim for claim in claims if claim.measure == ACCURACY]
    for verdict in VERDICTS:
        cells[f"claims, {verdict}"] = str(sum(claim.verdict == verdict for claim in claims))
        cells[f"claims on accuracy, {verdict}"] = str(
            sum(claim.verdict == verdict for claim in accuracies)
        )
    cells["claims"], cells["claims on accuracy"] = str(len(claims)), str(len(accuracies))
    cells["claims on accuracy, below the noise"] = str(
        sum(abs(claim.published) < claim.noise for claim in accuracies)
    )
    for name, (first, *_) in DATASETS.items():
        baselines = judged(results, first)
        cells[f"noise, {name}"] = f"{100 * baselines[0].noise:.2f}"
    for name, value in scatter(results, "table-9").items():
        cells[f"scatter {name}"] = f"{100 * value:.1f}"
    for name in BASELINES:
        trials = as_run_trials(results, name)
        cells[f"as run, {name}"] = mean_cell(trials, "late", percent_form)
        if name == "synchronous":
            cells["as run, seed 0"] = f"{trials.set_index('seed')[ACCURACY][0]:.1%}"
        for lr in (0.03, 0.01):
            cells[f"frozen, {name}, {lr:g}"] = mean_cell(
                frozen_trials(results, name, lr), ACCURACY, percent_form
            )
    return cells
