"""The table of notes.md."""

from __future__ import annotations

from labtables import Results, markdown, mean_cell, ratio, ratio_cell

from raysync.results.columns import percent_form, seconds_form
from raysync.results.grouping import setting_text

TIME = "time_to_target_s"
HIDDEN = "mlp(hidden=[128])"
"""The model that the prose is about."""


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    trials = results.trials("quickstart")
    rows = []
    for (model, profile), scenario in trials.groupby(
        ["config/model", "config/profile"], sort=False
    ):
        for name in dict.fromkeys(scenario.label):
            repeats = scenario[scenario.label == name]
            rows.append(
                [
                    f"`{setting_text(model)}`",
                    profile,
                    f"`{name}`",
                    mean_cell(repeats, TIME, seconds_form),
                    ratio_cell(ratio(repeats, scenario[scenario.label == "bsp"], TIME)),
                    mean_cell(repeats, "final_accuracy", percent_form),
                ]
            )
    target = f"{trials.target_at_least.iloc[0]:.0%}"
    return {
        "quickstart": markdown(
            ["model", "cluster", "paradigm", f"s to {target}", "in BSP's", "final accuracy"], rows
        )
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks: a paradigm's time to accuracy in BSP's on each
    cluster, with the model HIDDEN.
    """
    trials, cells = results.trials("quickstart"), {}
    trials = trials[trials["config/model"].map(setting_text) == HIDDEN]
    for profile, scenario in trials.groupby("config/profile"):
        for name in dict.fromkeys(scenario.label):
            repeats, bsp = (scenario[scenario.label == label] for label in (name, "bsp"))
            cells[f"{profile}, {name}"] = ratio_cell(ratio(repeats, bsp, TIME))
    return cells
