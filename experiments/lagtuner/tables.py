"""The tables and pictures of the pages, and the numbers in their prose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from labtables import (
    Results,
    by_seed,
    mean_cell,
    paired_gap,
    ratio,
    ratio_cell,
    sweeps_table,
    tabulate,
    to_asp,
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


def paced(trials: pd.DataFrame) -> str:
    """Tabulate how long the work takes, where nothing is trained."""
    return tabulate(
        {
            "paradigm": f"`{name}`",
            "s for all the work": mean_cell(repeats, "seconds", seconds_form),
            "in ASP's": ratio_cell(to_asp(trials, name, "seconds")),
            "wait share": mean_cell(repeats, "wait_fraction", share_form),
            "lead max": largest(repeats),
        }
        for name, repeats in trials.groupby("label", sort=False)
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
    results.write("figure-2-pace.thresholds", pd.DataFrame(rows))


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
    calm, slowed = (
        trials[(trials["config/faults"] == "[]") == is_calm] for is_calm in (True, False)
    )
    rows = [
        {
            "paradigm": f"`{name}`",
            "s for all the work, in ASP's": ratio_cell(to_asp(calm, name, "seconds")),
            "lead max": largest(calm[calm.label == name]),
            "with stragglers, in ASP's": ratio_cell(to_asp(slowed, name, "seconds")),
            "lead max ": largest(slowed[slowed.label == name]),
        }
        for name in trials.label.unique()
    ]
    means = {
        "paradigm": "mean of SSP 3 to 15",
        "s for all the work, in ASP's": ratio_cell(mean_ssp_to_asp(calm, "seconds")),
        "with stragglers, in ASP's": ratio_cell(mean_ssp_to_asp(slowed, "seconds")),
    }
    return tabulate([*rows, means])


# ---- the lead ----


def lead(results: Results) -> str:
    """Tabulate the largest lead, and the pace, at the profile's speeds."""
    trials = at(results.trials("lead"), SPEED, PROFILE_SPEED)
    parts = {f"jitter {sigma:.0%}": part for sigma, part in trials.groupby(JITTER)}
    return tabulate(
        {
            "paradigm": f"`{name}`",
            **{
                f"lead max, {jitter}": f"{part[part.label == name].lead_max.mean():,.0f}"
                for jitter, part in parts.items()
            },
            **{
                f"s in ASP's, {jitter}": ratio_cell(to_asp(part, name, "seconds"))
                for jitter, part in parts.items()
            },
        }
        for name in trials.label.unique()
    )


def literal(results: Results) -> str:
    """Tabulate how near Algorithm 1, word for word, comes to ASP, by how unequal the
    workers are.
    """
    return tabulate(
        {
            "faster / slower GPU": f"{speed:g}",
            "any bound on the lead, in the long run": f"{(1 + speed) / 2:.2f}",
            **{
                f"literal, jitter {sigma:.0%}": ratio_cell(to_asp(part, LITERAL, "seconds"))
                for sigma, part in trials.groupby(JITTER)
            },
        }
        for speed, trials in results.trials("lead").groupby(SPEED)
    )


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
                {
                    "cluster, shards": f"{cluster}, {shards}",
                    "paradigm": f"`{name}`",
                    "lr": f"{repeats.lr.iloc[0]:g}",
                    "accuracy %": mean_cell(repeats, "percent", ".2f"),
                    "less ASP, points": gap if name != "asp" else "",
                    "": gap.verdict if name != "asp" else "",
                    "s for all the work, in ASP's": ratio_cell(
                        ratio(repeats, arms["asp"], "virtual_s")
                    ),
                    "lead max": largest(repeats),
                    "staleness": mean_cell(repeats, "staleness", plain_form),
                }
            )
    return tabulate(rows)


def adaptation(results: Results) -> str:
    """Tabulate LagTuner beside each fixed bound where another worker is slow from time to time."""
    arms = bounded(results)["skewed", "changing"]
    return tabulate(
        {
            "": f"`{ours}` and `{name}`",
            "difference, points": (gap := paired_gap(arms[ours], repeats, MARGIN)),
            " ": gap.verdict,
            "s for all the work, ratio": ratio_cell(ratio(arms[ours], repeats, "virtual_s")),
        }
        for name, repeats in arms.items()
        if name.startswith("ssp")
        for ours in ("lagtuner hard", "lagtuner literal")
    )


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
            facts[f"bounds accuracy, {where}"] = mean_cell(repeats, "percent", ".1f")
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
    arms = dropped(results)
    return tabulate(
        {
            "paradigm": f"`{name}`",
            "published: s to 67 %": f"{first:,.0f}",
            "to 68 %": f"{second:,.0f}" if second else "never",
            "measured: s to *between*": mean_cell(arms[name], BETWEEN, seconds_form),
            "to *top*": mean_cell(arms[name], TOP, seconds_form),
            "s for all the work": mean_cell(arms[name], "virtual_s", seconds_form),
            "first plateau, %": mean_cell(arms[name], "first_plateau", ".1f"),
            "last plateau, %": mean_cell(arms[name], "last_plateau", ".1f"),
            "lr": f"{arms[name].lr.iloc[0]:g}",
            "lead max": largest(arms[name]),
        }
        for name, (first, second) in PUBLISHED.items()
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
    measures = {"s to *between*": BETWEEN, "s to *top*": TOP, "s for all the work": "virtual_s"}
    return tabulate(
        {"": f"`{ours}` / `{theirs}`"}
        | {
            heading: ratio_cell(drop_ratio(arms, ours, theirs, key))
            for heading, key in measures.items()
        }
        for ours, theirs in DROP_CONTRASTS
    )


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
