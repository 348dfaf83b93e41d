"""The tables and pictures of the pages, and the numbers in their prose."""

from __future__ import annotations

from collections.abc import Mapping
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
    ratio,
    ratio_cell,
    sweeps_table,
)

from raysync.core.decisions import Note
from raysync.core.journal import Entry
from raysync.record.sweeps import SweepRecord
from raysync.results.columns import count_form, plain_form, seconds_form, share_form
from raysync.results.statistics import Estimate, paired_ratio

HERE = Path(__file__).parent
JITTER, SPEED = "config/workers.*.jitter.sigma", "config/workers.1.speed"
HARD, LITERAL = "lagtuner(bound=hard)", "lagtuner(bound=literal)"
PROFILE_SPEED = 2.77
SSP_15 = "ssp(staleness=15)"
S_LOWER = 3
MARGIN = 1.0
"""Points of accuracy that do not matter in bounds.py; set before its first run."""
PUBLISHED = {
    "bsp": (6159.2, None),
    "asp": (2993.1, 3017.2),
    "ssp 3": (5678.2, None),
    "ssp 6": (5703.8, 6908.2),
    "ssp 15": (5564.9, 7255.6),
    "lagtuner hard": (3016.4, 3046.3),
    "lagtuner literal": (3016.4, 3046.3),
}
"""Table 2: seconds to 67 % and to 68 %; None: never. Its one row of LagTuner stands for both."""


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    return {
        "sweeps": sweeps_table(results),
        "drops": drops(results),
        "drops contrasts": drops_contrasts(results),
        "pace": pace(results),
        "stragglers-two-gpus": paced(results.trials("stragglers-two-gpus")),
        "lead": lead(results),
        "literal": literal(results),
        "bounds": bounds(results),
        "adaptation": adaptation(results),
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    pace_of = results.trials("figure-2-pace")
    slow = pace_of[pace_of["config/faults"] != "[]"]
    two = at(results.trials("lead"), SPEED, PROFILE_SPEED)
    steady = at(two, JITTER, 0.01)
    return {
        "pace at 5 %, literal": ratio_cell(to_asp(at(two, JITTER, 0.05), LITERAL, "seconds")),
        **{
            f"{name}, {paradigm}": ratio_cell(to_asp(trials, paradigm, "seconds"))
            for name, trials in (
                ("pace", steady),
                ("stragglers", slow),
                ("equal", pace_of[pace_of["config/faults"] == "[]"]),
            )
            for paradigm in dict.fromkeys(trials.label)
        },
        **{
            f"lead, {paradigm}": format(repeats.lead_max.max(), ",.0f")
            for paradigm, repeats in steady.groupby("label")
        },
        "stragglers, mean ssp": ratio_cell(mean_ssp_to_asp(slow, "seconds")),
        "stragglers, hard / mean ssp": ratio_cell(
            paired_ratio(by_seed(slow[slow.label == HARD], "seconds"), mean_of_ssp(slow, "seconds"))
        ),
        "stragglers, hard / ssp 15": ratio_cell(
            ratio(slow[slow.label == HARD], slow[slow.label == SSP_15], "seconds")
        ),
        **threshold_facts(results),
        **bounds_facts(results),
        **drops_facts(results),
    }


def draw(results: Results, sweeps: Mapping[str, SweepRecord]) -> None:
    """Draw the pictures from the records of sweeps."""
    from pictures import draw_leads

    if "lead" in sweeps:
        draw_leads(sweeps["lead"], HERE / "lead.svg")


def at(trials: pd.DataFrame, setting: str, value: float) -> pd.DataFrame:
    """Return the trials with one value of a setting."""
    return trials[trials[setting] == value]


def to_asp(trials: pd.DataFrame, paradigm: str, key: str) -> Estimate:
    """Return a measure of a paradigm as a ratio to ASP's of the same seeds."""
    return ratio(trials[trials.label == paradigm], trials[trials.label == "asp"], key)


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


def largest(repeats: pd.DataFrame) -> str:
    """Return the largest lead of all repeats."""
    return format(repeats.lead_max.max(), count_form(repeats.lead_max.max()))


def mean_ssp_to(trials: pd.DataFrame, label: str, key: str) -> Estimate:
    """Return the mean over the thresholds of SSP as a ratio to a paradigm's."""
    return paired_ratio(mean_of_ssp(trials, key), by_seed(trials[trials.label == label], key))


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
    alike = bounded(results)["alike", "four unequal"]
    facts["asp less ssp 15, alike"] = str(paired_gap(alike["asp"], alike["ssp 15"], MARGIN))
    skewed = bounded(results)["skewed", "four unequal"]
    facts["balanced less ssp 3"] = str(paired_gap(skewed["balanced"], skewed["ssp 3"], MARGIN))
    arms = bounded(results)["skewed", "changing"]
    for name, repeats in arms.items():
        for rule in ("hard", "literal"):
            ours = arms[f"lagtuner {rule}"]
            facts[f"adaptation {rule}, {name}"] = str(paired_gap(ours, repeats, MARGIN))
            facts[f"adaptation {rule} s, {name}"] = ratio_cell(ratio(ours, repeats, "virtual_s"))
    return facts


# ---- drops.py: Table 2 with its learning-rate drops ----

BETWEEN, TOP = "to_between_s", "to_top_s"


def dropped(results: Results) -> dict[str, pd.DataFrame]:
    """Return paradigm -> its repeats; plateaus in percent."""
    runs = results.of_runs("drops.train", "drops")
    runs = runs.assign(accuracy=runs.last_plateau)
    runs = runs.assign(**{name: 100 * runs[name] for name in ("first_plateau", "last_plateau")})
    return {name: runs[runs.arm == name] for name in dict.fromkeys(runs.arm)}


def drops(results: Results) -> str:
    """Tabulate plateaus, and the time to both targets, by paradigm."""
    rows = []
    arms = dropped(results)
    for name, (first, second) in PUBLISHED.items():
        repeats = arms[name]
        rows.append(
            [
                f"`{name}`",
                f"{first:,.0f}",
                f"{second:,.0f}" if second else "never",
                mean_cell(repeats, BETWEEN, seconds_form),
                mean_cell(repeats, TOP, seconds_form),
                mean_cell(repeats, "virtual_s", seconds_form),
                mean_cell(repeats, "first_plateau", lambda _: ".1f"),
                mean_cell(repeats, "last_plateau", lambda _: ".1f"),
                f"{repeats.lr.iloc[0]:g}",
                largest(repeats),
            ]
        )
    return markdown(
        [
            "paradigm",
            "published: s to 67 %",
            "to 68 %",
            "measured: s to *between*",
            "to *top*",
            "s for all the work",
            "first plateau, %",
            "last plateau, %",
            "lr",
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
    """Return the contrasts, differences of the last plateaus, and how many runs reach *top*."""
    arms = dropped(results)
    facts = {
        f"drops {target}, {ours} / {theirs}": ratio_cell(drop_ratio(arms, ours, theirs, key))
        for ours, theirs in DROP_CONTRASTS
        for target, key in (("between", BETWEEN), ("top", TOP))
    }
    for theirs in ("ssp 3", "ssp 15", "asp"):
        gap = paired_gap(arms["lagtuner hard"], arms[theirs], MARGIN)
        facts[f"last plateau, lagtuner hard, {theirs}"] = str(gap)
    facts["last plateau, asp, bsp"] = str(paired_gap(arms["asp"], arms["bsp"], MARGIN))
    runs = pd.concat(arms.values())
    return facts | {"drops top runs": f"{runs[TOP].notna().sum()} of {len(runs)}"}
