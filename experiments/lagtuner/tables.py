"""The tables and pictures of the pages, and the numbers in their prose."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from pathlib import Path

import numpy as np
import pandas as pd
from labtables import (
    Results,
    by_paradigm,
    by_seed,
    markdown,
    mean,
    mean_cell,
    paired_gap,
    points_cell,
    ratio,
    ratio_cell,
    sweeps_table,
)

from raysync.core.decisions import Note
from raysync.core.journal import Entry
from raysync.record.sweeps import SweepRecord
from raysync.results.columns import count_form, percent_form, plain_form, seconds_form, share_form
from raysync.results.statistics import Estimate, paired_ratio

HERE = Path(__file__).parent
JITTER, SPEED = "config/workers.*.jitter.sigma", "config/workers.1.speed"
TIME = "time_to_target_s"
HARD, LITERAL = "lagtuner(bound=hard)", "lagtuner(bound=literal)"
PROFILE_SPEED = 2.77
SSP_15 = "ssp(staleness=15)"
S_LOWER = 3
MARGIN = 1.0
"""Points of accuracy that do not matter in bounds.py; set before its first run."""
TARGETS = (0.35, 0.40, 0.45)
"""Accuracies to which the gap to SSP is shown: the target, and five points either side."""
KEYS = (TIME, "seconds")
LATE, AROUND_70 = 5, slice(12, 17)
"""The evaluations that are averaged: the last ones, and those around 70 % of the run."""
PRE_STUDIES = {
    "lr-two-gpus": "two GPUs",
    "lr-four-equal": "four equal workers",
    "lr-alexnet": "alexnet-small, two GPUs",
}


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    return {
        "sweeps": sweeps_table(results),
        "pre-study": pre_study(results),
        "table-2": table_2(results),
        "jitter": by_jitter(results),
        "contrasts": contrasts(results),
        "alexnet": timed(results.trials("alexnet")),
        "figure-2": timed(results.trials("figure-2")),
        "pace": pace(results),
        "stragglers": timed(results.trials("stragglers")),
        "stragglers-two-gpus": paced(results.trials("stragglers-two-gpus")),
        "lead": lead(results),
        "literal": literal(results),
        "bounds": bounds(results),
        "adaptation": adaptation(results),
        "drops": drops(results),
        "drops contrasts": drops_contrasts(results),
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    steady = at(results.trials("table-2"), JITTER, 0.01)
    pace_of = results.trials("figure-2-pace")
    slow = pace_of[pace_of["config/faults"] != "[]"]
    return {
        **{
            f"{name}, {paradigm}": ratio_cell(to_asp(trials, paradigm, key))
            for name, trials, key in (
                ("table-2", steady, TIME),
                ("table-2 pace", steady, "seconds"),
                ("stragglers", results.trials("stragglers"), TIME),
                ("stragglers pace", slow, "seconds"),
                ("figure-2", results.trials("figure-2"), TIME),
                ("figure-2 trained pace", results.trials("figure-2"), "seconds"),
                ("figure-2 pace", pace_of[pace_of["config/faults"] == "[]"], "seconds"),
            )
            for paradigm in dict.fromkeys(trials.label)
        },
        "literal at 5 %": ratio_cell(
            to_asp(at(results.trials("table-2"), JITTER, 0.05), LITERAL, "seconds")
        ),
        **{
            f"lead, {paradigm}": format(repeats.lead_max.max(), ",.0f")
            for paradigm, repeats in steady.groupby("label")
        },
        "pace of mean ssp": ratio_cell(mean_ssp_to_asp(slow, "seconds")),
        **direct_facts(steady, slow),
        **noise_facts(results, steady),
        **threshold_facts(results),
        **bounds_facts(results),
        **drops_facts(results),
        **{f"target, {name}": f"{target(results, name):.0%}" for name in PRE_STUDIES},
        **{f"lr, {name}": f"{best_lr(results, name):g}" for name in PRE_STUDIES},
    }


def draw(results: Results, sweeps: Mapping[str, SweepRecord]) -> None:
    """Draw the pictures from the records of sweeps."""
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
    """Return the trials with one value of a setting."""
    return trials[trials[setting] == value]


def to_asp(trials: pd.DataFrame, paradigm: str, key: str) -> Estimate:
    """Return a measure of a paradigm as a ratio to ASP's of the same seeds."""
    return ratio(trials[trials.label == paradigm], trials[trials.label == "asp"], key)


# ---- the pre-study ----


def studied(results: Results, sweep: str) -> pd.DataFrame:
    """Return each trial with its learning rate, and its means over the last evaluations and over
    those around 70 % of the run.
    """
    curves = results.curves(sweep).groupby("trial").accuracy
    trials = results.trials(sweep).set_index("trial")
    rate = trials.get("config/update.lr", results.experiment(sweep).update.lr)
    return trials.assign(
        rate=rate,
        late=curves.apply(lambda curve: curve.iloc[-LATE:].mean()),
        around=curves.apply(lambda curve: curve.iloc[AROUND_70].mean()),
    )


def best_lr(results: Results, sweep: str) -> float:
    """Return the learning rate with the best mean over the last evaluations."""
    return float(studied(results, sweep).groupby("rate").late.mean().idxmax())


def target(results: Results, sweep: str) -> float:
    """Return the accuracy that BSP has around 70 % of its run at the best learning rate, rounded
    down to a whole percent.
    """
    trials = studied(results, sweep)
    mean_around = trials[trials.rate == best_lr(results, sweep)].around.mean()
    return floor(round(100 * mean_around, 6)) / 100  # 36 % is not 35.999...


def pre_study(results: Results) -> str:
    """Tabulate learning rates and targets."""
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
    """Return the mean, and the values that it is of."""
    each = f", of {' and '.join(f'{value:.1%}' for value in values)}" if len(values) > 1 else ""
    return f"{values.mean():.1%}{each}"


# ---- measured beside published ----


def table_2(results: Results) -> str:
    """Tabulate the time to accuracy at the smallest jitter that is not 0, beside the published one,
    as ratios to ASP's.
    """
    trials, published = at(results.trials("table-2"), JITTER, 0.01), results.published("table-2")
    base = published.rows["asp"][TIME]
    rows = []
    for name in dict.fromkeys(trials.label):
        repeats, theirs = trials[trials.label == name], published.rows[name][TIME]
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
    """Tabulate the time to accuracy, with accuracy, staleness, waits and leads."""
    return by_paradigm(
        trials,
        {
            f"s to {target_of(trials)}": lambda repeats: mean_cell(repeats, TIME, seconds_form),
            "in ASP's": lambda repeats: ratio_cell(to_asp(trials, repeats.label.iloc[0], TIME)),
            "s for all the work, in ASP's": lambda repeats: ratio_cell(
                to_asp(trials, repeats.label.iloc[0], "seconds")
            ),
            "final accuracy": lambda repeats: mean_cell(repeats, "final_accuracy", percent_form),
            "staleness": lambda repeats: mean_cell(repeats, "staleness_mean", plain_form),
            "wait share": lambda repeats: mean_cell(repeats, "wait_fraction", share_form),
            "lead max": largest,
        },
    )


def paced(trials: pd.DataFrame) -> str:
    """Tabulate how long the work takes, where nothing is trained."""
    return by_paradigm(
        trials,
        {
            "s for all the work": lambda repeats: mean_cell(repeats, "seconds", seconds_form),
            "in ASP's": lambda repeats: ratio_cell(
                to_asp(trials, repeats.label.iloc[0], "seconds")
            ),
            "wait share": lambda repeats: mean_cell(repeats, "wait_fraction", share_form),
            "lead max": largest,
        },
    )


def target_of(trials: pd.DataFrame) -> str:
    """Return the target accuracy as headings have it."""
    return f"{trials.target_at_least.iloc[0]:.0%}"


def largest(repeats: pd.DataFrame) -> str:
    """Return the largest lead of all repeats."""
    return format(repeats.lead_max.max(), count_form(repeats.lead_max.max()))


def by_jitter(results: Results) -> str:
    """Tabulate how Table 2 depends on how evenly the GPUs work."""
    trials = results.trials("table-2")
    sigmas = sorted(trials[JITTER].unique())
    rows = []
    for name in ("asp", HARD, LITERAL):
        parts = [at(trials, JITTER, sigma) for sigma in sigmas]
        rows.append(
            [
                f"`{name}`",
                *(ratio_cell(to_asp(part, name, TIME)) for part in parts),
                *(ratio_cell(to_asp(part, name, "seconds")) for part in parts),
            ]
        )
    heads = [f"jitter {sigma:.0%}" for sigma in sigmas]
    return markdown(
        [
            "paradigm",
            *(f"s to {target_of(trials)} in ASP's, {head}" for head in heads),
            *(f"s for all the work, {head}" for head in heads),
        ],
        rows,
    )


# ---- LagTuner beside SSP, not through ASP ----


def beside(trials: pd.DataFrame, ours: str, theirs: str, key: str) -> Estimate:
    """Return a measure of a paradigm as a ratio to another's of the same seeds."""
    return ratio(trials[trials.label == ours], trials[trials.label == theirs], key)


def mean_ssp_to(trials: pd.DataFrame, label: str, key: str) -> Estimate:
    """Return the mean over the thresholds of SSP as a ratio to a paradigm's."""
    return paired_ratio(mean_of_ssp(trials, key), by_seed(trials[trials.label == label], key))


def contrasts(results: Results) -> str:
    """Tabulate the direct comparisons on two unequal GPUs, to the target and for all the work."""
    trials = at(results.trials("table-2"), JITTER, 0.01)
    rows = [
        [f"`{ours}` / `{theirs}`", *(ratio_cell(beside(trials, ours, theirs, key)) for key in KEYS)]
        for ours, theirs in (
            (HARD, LITERAL),
            ("ssp(staleness=3)", HARD),
            ("ssp(staleness=6)", HARD),
            (SSP_15, HARD),
        )
    ]
    rows += [
        [
            f"mean of the three SSP / `{theirs}`",
            *(ratio_cell(mean_ssp_to(trials, theirs, key)) for key in KEYS),
        ]
        for theirs in (HARD, LITERAL)
    ]
    return markdown(["", f"s to {target_of(trials)}", "s for all the work"], rows)


def direct_facts(steady: pd.DataFrame, slow: pd.DataFrame) -> dict[str, str]:
    """Return the contrasts that the verdicts name, of two GPUs and of four with stragglers."""
    gap = mean_ssp_to(steady, LITERAL, TIME)
    assert gap.mean is not None
    assert gap.low is not None
    assert gap.high is not None
    saved = [f"{1 - 1 / value:.0%}".removesuffix("%") for value in (gap.mean, gap.low, gap.high)]
    staleness = steady[steady.label.str.startswith("ssp")].groupby("label").staleness_mean.mean()
    return {
        "hard / literal": ratio_cell(beside(steady, HARD, LITERAL, TIME)),
        "mean ssp / literal": ratio_cell(gap),
        "mean ssp / hard": ratio_cell(mean_ssp_to(steady, HARD, TIME)),
        "saved by literal": f"{saved[0]} % ({saved[1]} to {saved[2]})",
        "ssp pace": f"{_paces(steady).min():.2f} to {_paces(steady).max():.2f}",
        "ssp staleness": f"{staleness.min():.2f} to {staleness.max():.2f}",
        "asp less bsp": points_cell(steady[steady.label == "asp"], steady[steady.label == "bsp"]),
        "hard / mean ssp, stragglers": ratio_cell(
            paired_ratio(by_seed(slow[slow.label == HARD], "seconds"), mean_of_ssp(slow, "seconds"))
        ),
        "hard / ssp 15, stragglers": ratio_cell(beside(slow, HARD, SSP_15, "seconds")),
    }


def _paces(trials: pd.DataFrame) -> pd.Series:
    """Return the time for all the work in ASP's, under each threshold of SSP."""
    labels = [label for label in dict.fromkeys(trials.label) if label.startswith("ssp")]
    return pd.Series([to_asp(trials, label, "seconds").mean for label in labels])


def noise_facts(results: Results, steady: pd.DataFrame) -> dict[str, str]:
    """Return the noise of accuracy within a run and between seeds, in points, and the gap between
    SSP and LagTuner at three targets.
    """
    curves = results.curves("table-2")
    curves = curves[curves.trial.isin(steady.trial)]
    late = curves.groupby("trial").accuracy.apply(lambda curve: curve.iloc[-LATE:].std())
    between = steady.groupby("label").final_accuracy.std()
    facts = {
        "noise within": f"{100 * np.sqrt((late**2).mean()):.1f}",
        "noise between": f"{100 * np.sqrt((between**2).mean()):.1f}",
    }
    for value in TARGETS:
        reached = curves[curves.accuracy >= value].groupby("trial").seconds.first()
        timed_to = steady.assign(reached_s=steady.trial.map(reached))
        facts[f"mean ssp / literal at {value:.0%}"] = ratio_cell(
            mean_ssp_to(timed_to, LITERAL, "reached_s")
        )
    return facts


def threshold_facts(results: Results) -> dict[str, str]:
    """Return the mean threshold that the controller picked under stragglers, over the seeds."""
    picked = results.of_runs("figure-2-pace.thresholds", "figure-2-pace")
    return {
        f"threshold, {label}": format(repeats.threshold_mean.mean(), ".1f")
        for label, repeats in picked[picked.calls > 0].groupby("label")
    } | {"calls without stragglers": str(picked[~picked.stragglers].calls.sum())}


def keep(results: Results, sweeps: Mapping[str, SweepRecord]) -> None:
    """Keep the thresholds that the controller of LagTuner picked in figure-2-pace.yaml."""
    if "figure-2-pace" not in sweeps:
        return
    sweep, rows = sweeps["figure-2-pace"], []
    for trial in results.trials("figure-2-pace").itertuples():
        if trial.label in (HARD, LITERAL):
            picked = [
                S_LOWER + decision.values["extra"]
                for line in sweep.records[trial.trial].journal()
                for decision in (line.decisions if isinstance(line, Entry) else ())
                if isinstance(decision, Note) and decision.kind == "controller"
            ]
            rows.append(
                {
                    "trial": trial.trial,
                    "label": trial.label,
                    "seed": trial.seed,
                    "stragglers": "slow-down"
                    in sweep.table.set_index("trial").at[trial.trial, "config/faults"],
                    "calls": len(picked),
                    "threshold_mean": np.mean(picked) if picked else None,
                }
            )
    pd.DataFrame(rows).to_csv(
        results.folder / "results" / "figure-2-pace.thresholds.csv",
        index=False,
        float_format="%.6g",
    )


# ---- SSP 3 to 15, each and on average ----


def mean_of_ssp(trials: pd.DataFrame, key: str) -> dict[int, float | None]:
    """Return seed -> the mean of a measure over SSP 3 to 15, of those that have it; the paper's
    "average SSP".
    """
    means = trials[trials.label.str.startswith("ssp")].groupby("seed")[key].mean()
    return {int(seed): float(value) for seed, value in means.items()}


def mean_ssp_to_asp(trials: pd.DataFrame, key: str) -> Estimate:
    """Return the same as a ratio to ASP's."""
    return mean_ssp_to(trials, "asp", key)


def pace(results: Results) -> str:
    """Tabulate how long the work takes under each threshold of SSP, without and with stragglers."""
    trials = results.trials("figure-2-pace")
    parts = [trials[trials["config/faults"] == "[]"], trials[trials["config/faults"] != "[]"]]
    rows = []
    for name in dict.fromkeys(trials.label):
        cells = [
            [ratio_cell(to_asp(part, name, "seconds")), largest(part[part.label == name])]
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
    """Tabulate the largest lead, and the pace, at the profile's speeds."""
    trials = at(results.trials("lead"), SPEED, PROFILE_SPEED)
    sigmas = sorted(trials[JITTER].unique())
    rows = []
    for name in dict.fromkeys(trials.label):
        parts = [at(trials, JITTER, sigma) for sigma in sigmas]
        rows.append(
            [
                f"`{name}`",
                *(f"{mean(part[part.label == name], 'lead_max').mean:,.0f}" for part in parts),
                *(ratio_cell(to_asp(part, name, "seconds")) for part in parts),
            ]
        )
    heads = [f"jitter {sigma:.0%}" for sigma in sigmas]
    return markdown(
        [
            "paradigm",
            *(f"lead max, {head}" for head in heads),
            *(f"s in ASP's, {head}" for head in heads),
        ],
        rows,
    )


def literal(results: Results) -> str:
    """Tabulate how near Algorithm 1, word for word, comes to ASP, by how unequal the
    workers are.
    """
    trials = results.trials("lead")
    rows = []
    for speed in sorted(trials[SPEED].unique()):
        parts = [
            at(at(trials, SPEED, speed), JITTER, sigma) for sigma in sorted(trials[JITTER].unique())
        ]
        cells = [ratio_cell(to_asp(part, LITERAL, "seconds")) for part in parts]
        rows.append([f"{speed:g}", f"{(1 + speed) / 2:.2f}", *cells])
    heads = [f"literal, jitter {sigma:.0%}" for sigma in sorted(trials[JITTER].unique())]
    return markdown(["faster / slower GPU", "any bound on the lead, in the long run", *heads], rows)


# ---- bounds.py: what a bound on the lead buys ----

BOUNDED = [
    ("skewed", "two unequal"),
    ("skewed", "four unequal"),
    ("skewed", "changing"),
    ("alike", "four unequal"),
]
"""Shards and cluster, in the order of the page."""


def bounded(results: Results) -> dict[tuple[str, str], dict[str, pd.DataFrame]]:
    """Return shards and cluster -> paradigm -> its repeats."""
    runs = results.of_runs("bounds.train", "bounds")
    runs = runs.assign(percent=100 * runs.accuracy)
    return {
        (shards, cluster): dict(
            sorted(
                runs[(runs.shards == shards) & (runs.cluster == cluster)].groupby("arm"),
                key=lambda one: (not one[0].startswith("ssp"), len(one[0]), one[0]),
            )
        )
        for shards, cluster in BOUNDED
    }


def bounds(results: Results) -> str:
    """Tabulate accuracy and time beside ASP's, in each cluster."""
    rows = []
    for (shards, cluster), arms in bounded(results).items():
        for name, repeats in arms.items():
            gap = paired_gap(repeats, arms["asp"], MARGIN)
            rows.append(
                [
                    f"{cluster}, {shards}",
                    f"`{name}`",
                    f"{repeats.lr.iloc[0]:g}",
                    mean_cell(repeats, "percent", lambda _: ".2f"),
                    *(("", "") if name == "asp" else (str(gap), gap.verdict)),
                    ratio_cell(ratio(repeats, arms["asp"], "virtual_s")),
                    largest(repeats),
                    mean_cell(repeats, "staleness", plain_form),
                ]
            )
    return markdown(
        [
            "cluster, shards",
            "paradigm",
            "lr",
            "accuracy %",
            "less ASP, points",
            "",
            "s for all the work, in ASP's",
            "lead max",
            "staleness",
        ],
        rows,
    )


def adaptation(results: Results) -> str:
    """Tabulate LagTuner beside each fixed bound where another worker is slow from time to time."""
    arms = bounded(results)["skewed", "changing"]
    rows = []
    for name, repeats in arms.items():
        if name.startswith("ssp"):
            for ours in ("lagtuner hard", "lagtuner literal"):
                gap = paired_gap(arms[ours], repeats, MARGIN)
                seconds = ratio_cell(ratio(arms[ours], repeats, "virtual_s"))
                rows.append([f"`{ours}` and `{name}`", str(gap), gap.verdict, seconds])
    return markdown(["", "difference, points", "", "s for all the work, ratio"], rows)


def bounds_facts(results: Results) -> dict[str, str]:
    """Return accuracies less ASP's, and LagTuner's less those of fixed bounds."""
    facts = {}
    for (shards, cluster), arms in bounded(results).items():
        for name, repeats in arms.items():
            gap = paired_gap(repeats, arms["asp"], MARGIN)
            where = f"{cluster}, {shards}, {name}"
            facts[f"bounds, {where}"] = str(gap)
            facts[f"bounds verdict, {where}"] = gap.verdict
            facts[f"bounds s, {where}"] = ratio_cell(ratio(repeats, arms["asp"], "virtual_s"))
            facts[f"bounds accuracy, {where}"] = mean_cell(repeats, "percent", lambda _: ".1f")
    arms = bounded(results)["skewed", "changing"]
    for name, repeats in arms.items():
        facts[f"adaptation, {name}"] = str(paired_gap(arms["lagtuner hard"], repeats, MARGIN))
        facts[f"adaptation s, {name}"] = ratio_cell(
            ratio(arms["lagtuner hard"], repeats, "virtual_s")
        )
    return facts


# ---- drops.py: Table 2 with its learning-rate drops ----

BETWEEN, TOP = "to_between_s", "to_top_s"


def dropped(results: Results) -> dict[str, pd.DataFrame]:
    """Return paradigm -> its repeats, with the times of `mean ssp` beside them."""
    runs = results.of_runs("drops.train", "drops")
    runs = runs.assign(**{name: 100 * runs[name] for name in ("first_plateau", "last_plateau")})
    return {name: runs[runs.arm == name] for name in dict.fromkeys(runs.arm)}


def drops(results: Results) -> str:
    """Tabulate plateaus, and the time to both targets, by paradigm."""
    rows = []
    for name, repeats in dropped(results).items():
        rows.append(
            [
                f"`{name}`",
                f"{repeats.lr.iloc[0]:g}",
                mean_cell(repeats, "first_plateau", lambda _: ".1f"),
                mean_cell(repeats, "last_plateau", lambda _: ".1f"),
                mean_cell(repeats, BETWEEN, seconds_form),
                mean_cell(repeats, TOP, seconds_form),
                mean_cell(repeats, "virtual_s", seconds_form),
                largest(repeats),
            ]
        )
    return markdown(
        [
            "paradigm",
            "lr",
            "first plateau, %",
            "last plateau, %",
            "s to *between*",
            "s to *top*",
            "s for all the work",
            "lead max",
        ],
        rows,
    )


def drop_ratio(arms: Mapping[str, pd.DataFrame], ours: str, theirs: str, key: str) -> Estimate:
    """Return a time of a paradigm as a ratio to another's; `mean ssp` is that of SSP 3, 6, 15."""

    def times(name: str) -> dict[int, float | None]:
        if name != "mean ssp":
            return by_seed(arms[name], key)
        each = pd.DataFrame({bound: by_seed(arms[f"ssp {bound}"], key) for bound in (3, 6, 15)})
        means = each.astype(float).mean(axis="columns", skipna=False)
        # a bound that never reaches the target leaves the seed without a mean
        return {int(seed): None if pd.isna(value) else value for seed, value in means.items()}

    return paired_ratio(times(ours), times(theirs))


DROP_CONTRASTS = (
    ("lagtuner literal", "mean ssp"),
    ("lagtuner hard", "mean ssp"),
    ("ssp 3", "asp"),
    ("ssp 6", "asp"),
    ("ssp 15", "asp"),
    ("bsp", "asp"),
    ("lagtuner literal", "asp"),
    ("lagtuner hard", "asp"),
    ("lagtuner hard", "ssp 15"),
)


def drops_contrasts(results: Results) -> str:
    """Tabulate the ratios of times, to both targets and for all the work."""
    arms = dropped(results)
    rows = [
        [
            f"`{ours}` / `{theirs}`",
            *(
                ratio_cell(drop_ratio(arms, ours, theirs, key))
                for key in (BETWEEN, TOP, "virtual_s")
            ),
        ]
        for ours, theirs in DROP_CONTRASTS
    ]
    return markdown(["", "s to *between*", "s to *top*", "s for all the work"], rows)


def drops_facts(results: Results) -> dict[str, str]:
    """Return the contrasts, and how many runs reach the top."""
    arms = dropped(results)
    facts = {
        f"drops {target}, {ours} / {theirs}": ratio_cell(drop_ratio(arms, ours, theirs, key))
        for ours, theirs in DROP_CONTRASTS
        for target, key in (("between", BETWEEN), ("top", TOP))
    }
    for name, repeats in arms.items():
        facts[f"drops reach top, {name}"] = f"{repeats[TOP].notna().sum()} of {len(repeats)}"
    return facts
