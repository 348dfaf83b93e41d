"""The tables of the pages, and the numbers in their prose."""

from __future__ import annotations

import pandas as pd
from labtables import Results, by_seed, mean_cell, points_cell, ratio, ratio_cell, tabulate

from raysync.results.columns import percent_form, seconds_form
from raysync.results.grouping import setting_text
from raysync.results.statistics import Estimate, paired_ratio

TIME = "time_to_target_s"
HIDDEN = "mlp(hidden=[128])"
"""The model that the prose is about."""
UNEQUAL, UNSTEADY = "demo-4-unequal", "demo-4-unsteady"


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    return {"quickstart": measured(results), "interaction": interactions(results)}


def measured(results: Results) -> str:
    """Tabulate each paradigm with each model on each cluster."""
    trials = results.trials("quickstart")
    return tabulate(
        {
            "model": f"`{setting_text(model)}`",
            "cluster": profile,
            "paradigm": f"`{name}`",
            f"s to {trials.target_at_least.iloc[0]:.0%}": mean_cell(repeats, TIME, seconds_form),
            "in BSP's": ratio_cell(ratio(repeats, scenario[scenario.label == "bsp"], TIME)),
            "final accuracy": mean_cell(repeats, "final_accuracy", percent_form),
        }
        for (model, profile), scenario in trials.groupby(
            ["config/model", "config/profile"], sort=False
        )
        for name, repeats in scenario.groupby("label", sort=False)
    )


def interactions(results: Results) -> str:
    """Tabulate the time to the target in BSP's on both clusters, and the first in the second."""
    trials = results.trials("quickstart").groupby("config/model", sort=False)
    return tabulate(
        {
            "model": f"`{setting_text(model)}`",
            "paradigm": f"`{name}`",
            "always slower": ratio_cell(in_bsps(of_model, UNEQUAL, name)),
            "slow at random": ratio_cell(in_bsps(of_model, UNSTEADY, name)),
            "the first / the second": ratio_cell(interaction(of_model, name)),
        }
        for model, of_model in trials
        for name in of_model.label.unique()
        if name != "bsp"
    )


def scenario(trials: pd.DataFrame, profile: str, name: str) -> pd.DataFrame:
    """Return the repeats of a paradigm on a cluster."""
    return trials[(trials["config/profile"] == profile) & (trials.label == name)]


def in_bsps(trials: pd.DataFrame, profile: str, name: str) -> Estimate:
    """Estimate a paradigm's time to the target in BSP's on a cluster."""
    return ratio(scenario(trials, profile, name), scenario(trials, profile, "bsp"), TIME)


def interaction(trials: pd.DataFrame, name: str) -> Estimate:
    """Estimate the time in BSP's on the first cluster, in that on the second, paired by seed."""
    first, second = (relative_by_seed(trials, profile, name) for profile in (UNEQUAL, UNSTEADY))
    return paired_ratio(first, second)


def relative_by_seed(trials: pd.DataFrame, profile: str, name: str) -> dict[int, float | None]:
    """Return seed -> a paradigm's time to the target in BSP's; None where either has none."""
    ours, theirs = (by_seed(scenario(trials, profile, label), TIME) for label in (name, "bsp"))
    return {
        seed: None if mine is None or (its := theirs[seed]) is None else mine / its
        for seed, mine in ours.items()
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks, all with the model HIDDEN: a paradigm's time to
    the target in BSP's on each cluster, its final accuracy less BSP's, and the first of these
    ratios in the second.
    """
    trials, cells = results.trials("quickstart"), {}
    trials = trials[trials["config/model"].map(setting_text) == HIDDEN]
    for name in dict.fromkeys(trials.label):
        for profile in (UNEQUAL, UNSTEADY):
            cells[f"{profile}, {name}"] = ratio_cell(in_bsps(trials, profile, name))
            cells[f"accuracy, {profile}, {name}"] = points_cell(
                *(scenario(trials, profile, label) for label in (name, "bsp"))
            )
        cells[f"interaction, {name}"] = ratio_cell(interaction(trials, name))
    for profile in (UNEQUAL, UNSTEADY):
        hard = scenario(trials, profile, "lagtuner(bound=hard)")
        for bound in (3, 15):
            fixed = scenario(trials, profile, f"ssp(staleness={bound})")
            cells[f"hard in ssp {bound}'s, {profile}"] = ratio_cell(ratio(hard, fixed, TIME))
    return cells
