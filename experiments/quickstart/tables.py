"""The table of README.md."""

from __future__ import annotations

from labtables import Results, markdown, mean_cell, ratio, ratio_cell

from raysync.results.scenarios import setting_text
from raysync.results.shown import percent_form, seconds_form

TIME = "time_to_accuracy_s"


def tables(results: Results) -> dict[str, str]:
    """By the names of their marks."""
    trials = results.trials("quickstart")
    rows = []
    for (model, profile), scenario in trials.groupby(["config/model", "config/profile"], sort=False):
        for name in dict.fromkeys(scenario.rule):
            repeats = scenario[scenario.rule == name]
            rows.append([f"`{setting_text(model)}`", profile, f"`{name}`", mean_cell(repeats, TIME, seconds_form),
                         ratio_cell(ratio(repeats, scenario[scenario.rule == "bsp"], TIME)),
                         mean_cell(repeats, "final_accuracy", percent_form)])
    target = f"{trials.target_accuracy.iloc[0]:.0%}"
    return {"quickstart": markdown(["model", "cluster", "paradigm", f"s to {target}", "in BSP's", "final accuracy"], rows)}


def facts(results: Results) -> dict[str, str]:
    """By the names of their marks: time to accuracy of `asp` and `lagtuner(bound=hard)` in BSP's, for each cluster."""
    trials, found = results.trials("quickstart"), {}
    for (model, profile), scenario in trials.groupby(["config/model", "config/profile"], sort=False):
        for name in ("asp", "lagtuner(bound=hard)"):
            one = ratio(scenario[scenario.rule == name], scenario[scenario.rule == "bsp"], TIME)
            found[f"{setting_text(model)}, {profile}, {name}"] = ratio_cell(one)
    return found
