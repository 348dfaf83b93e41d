"""The tables and the picture of the pages, and the numbers in their prose."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import yaml
from labtables import Results, percent_cell, points_cell, ratio, ratio_cell, sweeps_table, tabulate

from raysync.core.ids import WorkerId
from raysync.record.sweeps import SweepRecord
from raysync.results.columns import ratio_text

HERE = Path(__file__).parent
SETTINGS = {  # name in tables -> what differs from K = 4, S = 2
    "both": {},
    "plain": {"modules": 1, "groups": 1},
    "data-parallel": {"modules": 1},
    "pipeline": {"groups": 1},
    "K = 2": {"modules": 2},
    "S = 4": {"groups": 4},
    "four replicas": {"modules": 1, "groups": 4},
    "eight replicas": {"modules": 1, "groups": 8},
    "shrink": {"shrink": 0.5},
    "latest": {"weights": "latest"},
    "ssp": {"sync": {"name": "ssp", "staleness": 3}},
    "asp": {"sync": "asp"},
}
SHOWN = {
    "plain": "plain backpropagation: K = 1, S = 1",
    "data-parallel": "data parallel only: K = 1, S = 2",
    "pipeline": "decoupled only: K = 4, S = 1",
    "both": "both: K = 4, S = 2",
}
FACTORS = {
    "four devices": {
        "four replicas": "K = 1, S = 4",
        "K = 2": "K = 2, S = 2",
        "pipeline": "K = 4, S = 1",
    },
    "eight devices": {"eight replicas": "K = 1, S = 8", "both": "K = 4, S = 2"},
    "modules (S = 2)": {"data-parallel": "K = 1", "K = 2": "K = 2", "both": "K = 4"},
    "groups (K = 4)": {"pipeline": "S = 1", "both": "S = 2", "S = 4": "S = 4"},
    "shrink": {"both": "beta = 1", "shrink": "beta = 0.5"},
    "weights of the backward pass": {"both": "stash", "latest": "latest"},
    "replicas of a module": {"both": "BSP", "ssp": "SSP(3)", "asp": "ASP"},
}
OVERLAPS = ("overlap", "overlap-emulated")
"""The experiment files of the runs on Ray."""
FDG = {"plain": 93.81, "beta = 1": 93.17, "beta = 0.5": 93.86}
"""Published by FDG on the page of its program: accuracies in percent of ResNet-56 on CIFAR-10, one
group, after a full training."""
LINK = "config/network.link.bandwidth_bytes_per_s"
TARGET = 0.9
"""The time is measured to this share of plain backpropagation's mean final accuracy."""


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    trials = named(results)
    return {
        "sweeps": sweeps_table(results),
        "pre-study": by_rate(results.trials("lr")),
        "resnet20": by_rate(results.trials("resnet20")),
        "four": of_settings(trials, SHOWN),
        "factors": factors(trials),
        "fdg": beside_fdg(trials),
        "speed-up": speed_up(results),
        "overlap": overlap(results),
        "gradient-norm": gradient_norm(results),
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks: accuracies in percent, differences in points,
    times as ratios.
    """
    trials = named(results)
    plain, both = (trials[trials.setting == name] for name in ("plain", "both"))
    cells = best_rates(results.trials("lr"))
    for name in SETTINGS:
        repeats = trials[trials.setting == name]
        cells |= {
            name: percent_cell(repeats),
            f"{name}, seconds": ratio_cell(ratio(repeats, plain, "seconds")),
            f"{name}, to target": ratio_cell(ratio(repeats, plain, "to_target_s")),
            f"{name} against both": points_cell(repeats, both),
            f"{name} against plain": points_cell(repeats, plain),
        }
    pace = overlaps(results).groupby(["file", "locked"]).batches_per_s.mean()
    for name in OVERLAPS:
        cells[f"batches, {name}"] = ratio_text(pace[name, False] / pace[name, True])
    for name, other in (
        ("K = 2", "data-parallel"),
        ("both", "data-parallel"),
        ("shrink", "data-parallel"),
        ("K = 2", "four replicas"),
        ("both", "eight replicas"),
    ):
        pair = [trials[trials.setting == each] for each in (name, other)]
        cells[f"{name} against {other}"] = points_cell(*pair)
        cells[f"{name} / {other}, seconds"] = ratio_cell(ratio(*pair, "seconds"))
    norms = results.of_runs("gradient-norm")
    for modules in (1, 4):
        falling = norms[(norms.modules == modules) & (norms.schedule == "inverse-sqrt")]
        late, early = (falling[falling.updates == count] for count in (8000, 2000))
        cells[f"norm falls, K = {modules}"] = ratio_cell(ratio(late, early, "norm2"))
    cells["loss error"] = f"{norms[norms.updates == norms.updates.min()].loss_error_max.max():.0e}"
    return cells | {"target": f"{trials.target.iloc[0]:.0%}"}


def keep(results: Results, sweeps: Mapping[str, SweepRecord]) -> None:
    """Keep the share of the work that the largest stage has, of each trial of speed-up.yaml."""
    if "speed-up" in sweeps:
        rows = []
        for trial, record in sweeps["speed-up"].records.items():
            busy_s = record.pushes.groupby(
                record.pushes.worker.map(lambda worker: WorkerId(worker).stage)
            ).busy_s.sum()
            rows.append({"trial": trial, "largest_share": busy_s.max() / busy_s.sum()})
        results.write("speed-up.shares", pd.DataFrame(rows))


def draw(results: Results, sweeps: Mapping[str, SweepRecord]) -> None:
    """Draw the picture."""
    from pictures import draw_curves

    if "factors" in sweeps:
        trials = named(results)
        four = trials[trials.setting.isin(SHOWN)].assign(label=lambda rows: rows.setting.map(SHOWN))
        colours = dict(
            zip(SHOWN.values(), ("#636363", "#756bb1", "#31a354", "#e6550d"), strict=True)
        )
        draw_curves(
            four.assign(target_at_least=four.target),
            results.curves("factors"),
            HERE / "four.svg",
            colours,
            columns=2,
        )


def named(results: Results) -> pd.DataFrame:
    """Return the trials of factors.yaml with `setting`, the accuracy that is the `target`, and the
    seconds to it.
    """
    trials, centre = results.trials("factors"), {"modules": 4, "groups": 2}
    names = {
        yaml.safe_dump(centre | other, sort_keys=True): name for name, other in SETTINGS.items()
    }
    settings = [yaml.safe_load(text) for text in trials["config/paradigm"]]
    for parameters in settings:
        parameters.pop("name")
    trials = trials.assign(
        setting=[names[yaml.safe_dump(each, sort_keys=True)] for each in settings]
    )
    target = TARGET * trials[trials.setting == "plain"].final_accuracy.mean()
    curves = results.curves("factors")
    reached = curves[curves.accuracy >= target].groupby("trial").seconds.first()
    return trials.assign(target=target, to_target_s=trials.trial.map(reached))


# ---- tables ----


def by_rate(trials: pd.DataFrame) -> str:
    """Tabulate the final accuracy of two settings at each learning rate."""
    rows = []
    for rate, group in trials.groupby("config/update.lr", sort=False):
        plain, both = (group[group["config/workers.*.count"] == count].iloc[0] for count in (1, 8))
        finals = [
            0.0 if pd.isna(trial.final_accuracy) else 100 * trial.final_accuracy
            for trial in (plain, both)
        ]
        rows.append(
            {
                "lr": f"{rate:g}",
                "plain, %": f"{finals[0]:.1f}",
                "K = 4, S = 2, %": f"{finals[1]:.1f}",
                "mean": f"{sum(finals) / 2:.1f}",
                "time in plain's": ratio_text(both.seconds / plain.seconds),
            }
        )
    return tabulate(rows)


def best_rates(trials: pd.DataFrame) -> dict[str, str]:
    """Return the rate at which each setting of the pre-study alone is best, and its
    accuracy there.
    """
    cells = {}
    for count, name in ((1, "plain"), (8, "both")):
        group = trials[trials["config/workers.*.count"] == count]
        best = group.loc[group.final_accuracy.idxmax()]
        cells |= {
            f"{name}, best rate": f"{best['config/update.lr']:g}",
            f"{name}, at its best rate": f"{100 * best.final_accuracy:.1f}",
        }
    return cells


def beside_fdg(trials: pd.DataFrame) -> str:
    """Tabulate what four stages cost in accuracy, published by FDG, and here beside the same groups
    with one stage.
    """
    return tabulate(
        {
            "K = 4": text,
            "FDG: accuracy %": f"{FDG[text]:.2f}",
            "against plain, points": f"{FDG[text] - FDG['plain']:+.2f}",
            "groups here": groups,
            "measured, points": points_cell(
                *(trials[trials.setting == name] for name in (ours, base))
            ),
        }
        for text, groups, ours, base in (
            ("beta = 1", 1, "pipeline", "plain"),
            ("beta = 1", 2, "both", "data-parallel"),
            ("beta = 0.5", 2, "shrink", "data-parallel"),
        )
    )


def of_settings(trials: pd.DataFrame, texts: Mapping[str, str]) -> str:
    """Tabulate each setting: accuracy for the same samples, and time in plain
    backpropagation's.
    """
    plain = trials[trials.setting == "plain"]
    rows = []
    for name, text in texts.items():
        repeats = trials[trials.setting == name]
        rows.append(
            {
                "": text,
                "accuracy %": percent_cell(repeats),
                "time in plain's": ratio_cell(ratio(repeats, plain, "seconds")),
                f"time to {trials.target.iloc[0]:.0%} in plain's": ratio_cell(
                    ratio(repeats, plain, "to_target_s")
                ),
                "staleness, versions, mean of all stages": f"{repeats.staleness_mean.mean():.2f}",
            }
        )
    return tabulate(rows)


def factors(trials: pd.DataFrame) -> str:
    """Tabulate one factor at a time."""
    return "\n\n".join(
        f"*{factor}*\n\n{of_settings(trials, texts)}" for factor, texts in FACTORS.items()
    )


def speed_up(results: Results) -> str:
    """Tabulate how much faster K stages are than one, beside K and what the largest stage
    allows.
    """
    trials = results.trials("speed-up").merge(results.table("speed-up.shares"), on="trial")
    rows = []
    trials = trials.assign(modules=trials["config/workers.*.count"])
    for (model, bandwidth), group in trials.groupby(["config/model", LINK], sort=False):
        alone_s = group[group.modules == 1].seconds.iloc[0]
        for trial in group[group.modules > 1].itertuples():
            rows.append(
                {
                    "model": f"`{model}`",
                    "links, Gbit/s": f"{8 * bandwidth / 1e9:g}",
                    "K, the ideal": trial.modules,
                    "the largest module allows": ratio_text(1 / trial.largest_share),
                    "measured": ratio_text(alone_s / trial.seconds),
                }
            )
    return tabulate(rows)


def overlaps(results: Results) -> pd.DataFrame:
    """Return a row for each stage of the runs that count."""
    both = [results.of_runs("overlap", file) for file in OVERLAPS]
    return pd.concat([runs[runs.file == file] for runs, file in zip(both, OVERLAPS, strict=True)])


def overlap(results: Results) -> str:
    """Tabulate the busy share of each stage on Ray, beside that with the stages in sequence."""
    rows = []
    for (name, locked), group in overlaps(results).groupby(["file", "locked"], sort=False):
        shares = group.groupby("module").busy_share.mean()
        rows.append(
            {
                "runs": f"`{name}.yaml`",
                "stages": "in sequence (`locked`)" if locked else "decoupled",
                "busy share of module 1, 2, ...": ", ".join(f"{share:.0%}" for share in shares),
                "sum": f"{shares.sum():.2f}",
                "batches a second": f"{group.batches_per_s.mean():.2f}",
            }
        )
    return tabulate(rows)


def gradient_norm(results: Results) -> str:
    """Tabulate the means over the seeds of the squared norm, update by update."""
    rows, norms = [], results.of_runs("gradient-norm")
    for (modules, schedule), group in norms.groupby(["modules", "schedule"], sort=False):
        for key, text in (
            ("norm2", "now"),
            ("smallest", "smallest so far"),
            ("weighted_mean", "mean so far"),
        ):
            values = group.groupby("updates")[key].mean()
            rows.append(
                {"": f"K = {modules}", "schedule": schedule, "squared norm": text}
                | {f"after {mark:,}": f"{value:.2g}" for mark, value in values.items()}
            )
    return tabulate(rows)
