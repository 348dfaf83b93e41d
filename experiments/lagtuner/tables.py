"""The tables and pictures of README.md, and the numbers in its prose."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from pathlib import Path

import pandas as pd
from labtables import (
    Results,
    by_seed,
    markdown,
    mean,
    mean_cell,
    of_rules,
    ratio,
    ratio_cell,
    sweeps_table,
)

from raysync.record.sweeps import SweepRecord
from raysync.results.columns import count_form, percent_form, plain_form, seconds_form, share_form
from raysync.results.statistics import Estimate, paired_ratio

HERE = Path(__file__).parent
JITTER, SPEED = "config/workers.*.jitter.sigma", "config/workers.1.speed"
TIME = "time_to_accuracy_s"
HARD, LITERAL = "lagtuner(bound=hard)", "lagtuner(bound=literal)"
PROFILE_SPEED = 2.77
LATE, AROUND_70 = 5, slice(12, 17)
"""Evaluations that are averaged: the last ones, and those around 70 % of the run."""
PRE_STUDIES = {
    "lr-two-gpus": "two GPUs",
    "lr-four-equal": "four equal workers",
    "lr-alexnet": "alexnet-small, two GPUs",
}


def tables(results: Results) -> dict[str, str]:
    """By the names of their marks."""
    return {
        "sweeps": sweeps_table(results),
        "pre-study": pre_study(results),
        "table-2": table_2(results),
        "jitter": by_jitter(results),
        "alexnet": timed(results.trials("alexnet")),
        "figure-2": timed(results.trials("figure-2")),
        "pace": pace(results),
        "stragglers": timed(results.trials("stragglers")),
        "stragglers-two-gpus": paced(results.trials("stragglers-two-gpus")),
        "lead": lead(results),
        "literal": literal(results),
    }


def facts(results: Results) -> dict[str, str]:
    """By the names of their marks."""
    one = at(results.trials("table-2"), JITTER, 0.01)
    pace_of = results.trials("figure-2-pace")
    slow = pace_of[pace_of["config/faults"] != "[]"]
    return {
        **{
            f"{name}, {rule}": ratio_cell(to_asp(trials, rule, key))
            for name, trials, key in (
                ("table-2", one, TIME),
                ("table-2 pace", one, "seconds"),
                ("stragglers", results.trials("stragglers"), TIME),
                ("stragglers pace", slow, "seconds"),
                ("figure-2", results.trials("figure-2"), TIME),
            )
            for rule in dict.fromkeys(trials.rule)
        },
        "literal at 5 %": ratio_cell(
            to_asp(at(results.trials("table-2"), JITTER, 0.05), LITERAL, "seconds")
        ),
        **{
            f"lead, {rule}": format(repeats.lead_max.max(), ",.0f")
            for rule, repeats in one.groupby("rule")
        },
        "pace of mean ssp": ratio_cell(mean_ssp_to_asp(slow, "seconds")),
        **{f"target, {name}": f"{target(results, name):.0%}" for name in PRE_STUDIES},
        **{f"lr, {name}": f"{best_lr(results, name):g}" for name in PRE_STUDIES},
    }


def draw(results: Results, sweeps: Mapping[str, SweepRecord]) -> None:
    """The pictures, from the records of sweeps."""
    from pictures import draw_curves, draw_leads

    if "lead" in sweeps:
        draw_leads(sweeps["lead"], HERE / "lead.svg")
    if "table-2" in sweeps:
        draw_curves(
            at(results.trials("table-2"), JITTER, 0.01),
            results.curves("table-2"),
            HERE / "table-2.svg",
        )


def at(trials: pd.DataFrame, setting: str, value: float) -> pd.DataFrame:
    """The trials with that value of a setting."""
    return trials[trials[setting] == value]


def to_asp(trials: pd.DataFrame, rule: str, key: str) -> Estimate:
    """A measure of a rule, as a ratio to ASP's of the same seeds."""
    return ratio(trials[trials.rule == rule], trials[trials.rule == "asp"], key)


# ---- the pre-study ----


def studied(results: Results, sweep: str) -> pd.DataFrame:
    """Each trial with its learning rate, and its means over the last evaluations and over those
    around 70 % of the run.
    """
    curves = results.curves(sweep).groupby("trial").accuracy
    trials = results.trials(sweep).set_index("trial")
    rate = trials.get("config/update.lr", results.experiment(sweep).update.lr)
    return trials.assign(
        rate=rate,
        late=curves.apply(lambda one: one.iloc[-LATE:].mean()),
        around=curves.apply(lambda one: one.iloc[AROUND_70].mean()),
    )


def best_lr(results: Results, sweep: str) -> float:
    """With the best mean over the last evaluations."""
    return float(studied(results, sweep).groupby("rate").late.mean().idxmax())


def target(results: Results, sweep: str) -> float:
    """What BSP has around 70 % of its run at the best learning rate, rounded down to a whole
    percent.
    """
    trials = studied(results, sweep)
    mean_around = trials[trials.rate == best_lr(results, sweep)].around.mean()
    return floor(round(100 * mean_around, 6)) / 100  # 36 % is not 35.999...


def pre_study(results: Results) -> str:
    """Learning rates and targets."""
    rows = []
    for sweep, name in PRE_STUDIES.items():
        for rate, repeats in studied(results, sweep).groupby("rate"):
            chosen = (
                f"chosen; target {target(results, sweep):.0%}"
                if rate == best_lr(results, sweep)
                else ""
            )
            rows.append([name, f"{rate:g}", listed(repeats.late), listed(repeats.around), chosen])
    return markdown(
        ["cluster", "lr", "BSP's accuracy: last five evaluations", "around 70 % of the run", ""],
        rows,
    )


def listed(values: pd.Series) -> str:
    """The mean, and what it is of."""
    each = f", of {' and '.join(f'{value:.1%}' for value in values)}" if len(values) > 1 else ""
    return f"{values.mean():.1%}{each}"


# ---- measured beside published ----


def table_2(results: Results) -> str:
    """Time to accuracy at the smallest jitter that is none, beside the published one, as ratios to
    ASP's.
    """
    trials, published = at(results.trials("table-2"), JITTER, 0.01), results.published("table-2")
    base = published.rows["asp"][TIME]
    rows = []
    for name in dict.fromkeys(trials.rule):
        repeats, theirs = trials[trials.rule == name], published.rows[name][TIME]
        rows.append(
            [
                f"`{name}`",
                f"{theirs:,.0f}",
                f"{theirs / base:.2f}",
                mean_cell(repeats, TIME, seconds_form),
                ratio_cell(to_asp(trials, name, TIME)),
                ratio_cell(to_asp(trials, name, "seconds")),
                mean_cell(repeats, "final_accuracy", percent_form),
                mean_cell(repeats, "wait_fraction", share_form),
                largest(repeats),
            ]
        )
    return markdown(
        [
            "paradigm",
            "published: s to 67 %",
            "in ASP's",
            f"measured: s to {target_of(trials)}",
            "in ASP's",
            "s for all the work, in ASP's",
            "final accuracy",
            "wait share",
            "lead max",
        ],
        rows,
    )


def timed(trials: pd.DataFrame) -> str:
    """Time to accuracy, and what came with it."""
    return of_rules(
        trials,
        {
            f"s to {target_of(trials)}": lambda repeats: mean_cell(repeats, TIME, seconds_form),
            "in ASP's": lambda repeats: ratio_cell(to_asp(trials, repeats.rule.iloc[0], TIME)),
            "s for all the work, in ASP's": lambda repeats: ratio_cell(
                to_asp(trials, repeats.rule.iloc[0], "seconds")
            ),
            "final accuracy": lambda repeats: mean_cell(repeats, "final_accuracy", percent_form),
            "staleness": lambda repeats: mean_cell(repeats, "staleness_mean", plain_form),
            "wait share": lambda repeats: mean_cell(repeats, "wait_fraction", share_form),
            "lead max": largest,
        },
    )


def paced(trials: pd.DataFrame) -> str:
    """How long the work takes, where nothing is trained."""
    return of_rules(
        trials,
        {
            "s for all the work": lambda repeats: mean_cell(repeats, "seconds", seconds_form),
            "in ASP's": lambda repeats: ratio_cell(to_asp(trials, repeats.rule.iloc[0], "seconds")),
            "wait share": lambda repeats: mean_cell(repeats, "wait_fraction", share_form),
            "lead max": largest,
        },
    )


def target_of(trials: pd.DataFrame) -> str:
    """The target accuracy as headings have it."""
    return f"{trials.target_accuracy.iloc[0]:.0%}"


def largest(repeats: pd.DataFrame) -> str:
    """The largest lead of all repeats."""
    return format(repeats.lead_max.max(), count_form(repeats.lead_max.max()))


def by_jitter(results: Results) -> str:
    """What of Table 2 depends on how evenly the GPUs work."""
    trials = results.trials("table-2")
    sigmas = sorted(trials[JITTER].unique())
    rows = []
    for name in ("asp", HARD, LITERAL):
        there = {sigma: at(trials, JITTER, sigma) for sigma in sigmas}
        rows.append(
            [
                f"`{name}`",
                *(ratio_cell(to_asp(one, name, TIME)) for one in there.values()),
                *(ratio_cell(to_asp(one, name, "seconds")) for one in there.values()),
            ]
        )
    heads = [f"jitter {sigma:.0%}" for sigma in sigmas]
    return markdown(
        [
            "paradigm",
            *(f"s to {target_of(trials)} in ASP's, {one}" for one in heads),
            *(f"s for all the work, {one}" for one in heads),
        ],
        rows,
    )


# ---- SSP 3 to 15, each and on average ----


def mean_of_ssp(trials: pd.DataFrame, key: str) -> dict[int, float | None]:
    """Seed -> mean of a measure over SSP 3 to 15, of those that have it; the paper's
    "average SSP".
    """
    means = trials[trials.rule.str.startswith("ssp")].groupby("seed")[key].mean()
    return {int(seed): float(value) for seed, value in means.items()}


def mean_ssp_to_asp(trials: pd.DataFrame, key: str) -> Estimate:
    """The same as a ratio to ASP's."""
    return paired_ratio(mean_of_ssp(trials, key), by_seed(trials[trials.rule == "asp"], key))


def pace(results: Results) -> str:
    """How long the work takes under each threshold of SSP, without and with stragglers."""
    trials = results.trials("figure-2-pace")
    parts = [trials[trials["config/faults"] == "[]"], trials[trials["config/faults"] != "[]"]]
    rows = []
    for name in dict.fromkeys(trials.rule):
        cells = [
            [ratio_cell(to_asp(part, name, "seconds")), largest(part[part.rule == name])]
            for part in parts
        ]
        rows.append([f"`{name}`", *cells[0], *cells[1]])
    means = [ratio_cell(mean_ssp_to_asp(part, "seconds")) for part in parts]
    rows.append(["mean of SSP 3 to 15", means[0], "", means[1], ""])
    return markdown(
        [
            "paradigm",
            "s for all the work, in ASP's",
            "lead max",
            "with stragglers, in ASP's",
            "lead max",
        ],
        rows,
    )


# ---- the lead ----


def lead(results: Results) -> str:
    """The largest lead, and the pace, at the profile's speeds."""
    trials = at(results.trials("lead"), SPEED, PROFILE_SPEED)
    sigmas = sorted(trials[JITTER].unique())
    rows = []
    for name in dict.fromkeys(trials.rule):
        there = [at(trials, JITTER, sigma) for sigma in sigmas]
        rows.append(
            [
                f"`{name}`",
                *(f"{mean(one[one.rule == name], 'lead_max').mean:,.0f}" for one in there),
                *(ratio_cell(to_asp(one, name, "seconds")) for one in there),
            ]
        )
    heads = [f"jitter {sigma:.0%}" for sigma in sigmas]
    return markdown(
        [
            "paradigm",
            *(f"lead max, {one}" for one in heads),
            *(f"s in ASP's, {one}" for one in heads),
        ],
        rows,
    )


def literal(results: Results) -> str:
    """How near Algorithm 1, word for word, comes to ASP, by how unequal the two workers are."""
    trials = results.trials("lead")
    rows = []
    for speed in sorted(trials[SPEED].unique()):
        there = [
            at(at(trials, SPEED, speed), JITTER, sigma) for sigma in sorted(trials[JITTER].unique())
        ]
        cells = [ratio_cell(to_asp(one, LITERAL, "seconds")) for one in there]
        rows.append([f"{speed:g}", f"{(1 + speed) / 2:.2f}", *cells])
    heads = [f"literal, jitter {sigma:.0%}" for sigma in sorted(trials[JITTER].unique())]
    return markdown(["faster / slower GPU", "any bound on the lead, in the long run", *heads], rows)
