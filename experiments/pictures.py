"""The pictures of the pages, drawn from records and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf, log2
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from labtables import Gap, counted, label_of
from matplotlib import pyplot as plt

from raysync.record.sweeps import SweepRecord

mpl.use("Agg")
mpl.rcParams["svg.hashsalt"] = "raysync"  # the same picture, byte for byte
mpl.rcParams["svg.fonttype"] = "none"
COLOURS = {
    "bsp": "#636363",
    "asp": "#756bb1",
    "ssp(staleness=3)": "#9ecae1",
    "ssp(staleness=6)": "#4292c6",
    "ssp(staleness=15)": "#08519c",
    "lagtuner(bound=hard)": "#e6550d",
    "lagtuner(bound=literal)": "#31a354",
}
LEADING = ("asp", "ssp(staleness=15)", "lagtuner(bound=hard)", "lagtuner(bound=literal)")
"""The paradigms whose leads are shown."""
POINTS = 300
"""About so many points make a line."""


def draw_leads(sweep: SweepRecord, file: Path) -> None:
    """Draw the faster GPU's lead over time, a panel for each jitter; seed 0, the profile's
    speed.
    """
    table = counted(sweep.table, sweep.experiment)
    table = table[(table["config/workers.1.speed"] == 2.77) & (table.seed == 0)]
    table = table[table["config/paradigm"].map(label_of).isin(LEADING)]
    sigmas = sorted(table["config/workers.*.jitter.sigma"].unique())
    figure, panels = plt.subplots(
        1, len(sigmas), figsize=(9, 3.4), sharey=True, layout="constrained"
    )
    for panel, sigma in zip(panels, sigmas, strict=True):
        trials = table[table["config/workers.*.jitter.sigma"] == sigma]
        for trial, text in zip(trials.trial, trials["config/paradigm"], strict=True):
            pushes = sweep.records[int(trial)].pushes
            pushes = pushes[pushes.group == "gtx1080ti"]
            thinned = pushes.iloc[:: max(1, len(pushes) // POINTS)]
            name = label_of(text)
            # other lines lie on that of ASP
            broad = {"linewidth": 3.5, "alpha": 0.4} if name == "asp" else {"linewidth": 1.2}
            panel.plot(
                thinned.released_at_s, thinned.lead + 1, label=name, color=COLOURS[name], **broad
            )
        panel.set(title=f"jitter {sigma:.0%}", xlabel="seconds (virtual)", yscale="log")
    panels[0].set_ylabel("lead of the faster GPU + 1, clocks")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(LEADING)
    )
    _save(figure, file)


def draw_curves(
    trials: pd.DataFrame,
    curves: pd.DataFrame,
    file: Path,
    colours: Mapping[str, str] = COLOURS,
    columns: int = 4,
) -> None:
    """Draw accuracy against time, mean over the seeds, and against samples; a line for each `label`
    of the trials.
    """
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True, layout="constrained")
    both = curves.merge(trials[["trial", "label"]], on="trial")
    for name in dict.fromkeys(trials.label):
        means = both[both.label == name].groupby("progress")[["seconds", "accuracy"]].mean()
        panels[0].plot(
            means.seconds, means.accuracy, label=name, color=colours[name], linewidth=1.2
        )
        panels[1].plot(means.index, means.accuracy, color=colours[name], linewidth=1.2)
    for panel, label in zip(panels, ("seconds (virtual)", "share of the work"), strict=True):
        panel.axhline(trials.target_at_least.iloc[0], color="black", linestyle=":", linewidth=0.8)
        panel.set_xlabel(label)
    panels[0].set_ylabel("accuracy, mean over the seeds")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=columns)
    _save(figure, file)


def draw_gaps(
    by_share: Mapping[str, Mapping[float, Gap]], by_window: Mapping[str, Gap], file: Path
) -> None:
    """Draw accuracy less BSP's, by the share of BSP at the beginning, and by where ASP was.

    The bars are 95 % intervals.

    Args:
        by_share: name -> share of BSP -> difference.
        by_window: name -> difference.
        file: the picture.
    """
    figure, (shares, windows) = plt.subplots(
        1, 2, figsize=(9, 3.7), width_ratios=(3, 2), layout="constrained"
    )
    for (name, gaps), colour, shift in zip(
        by_share.items(), ("#e6550d", "#636363"), (-0.05, 0.05), strict=True
    ):
        places = [_place(share) + shift for share in gaps]
        _bars(shares, places, list(gaps.values()), colour, name)
    ticks = sorted({share for gaps in by_share.values() for share in gaps})
    shares.set(
        xlabel="share of BSP at the beginning, %, then ASP",
        ylabel="final accuracy less BSP's, points",
        xticks=[_place(share) for share in ticks],
        xticklabels=[f"{100 * share:.3g}" for share in ticks],
    )
    shares.legend(loc="lower right", frameon=False)
    _bars(windows, range(len(by_window)), list(by_window.values()), "#e6550d", None)
    windows.set(
        xlabel="ASP in this quarter of the work only",
        xticks=range(len(by_window)),
        xticklabels=list(by_window),
    )
    for panel in (shares, windows):
        panel.axhline(0, color="black", linestyle=":", linewidth=0.8)
    _save(figure, file)


def _bars(
    panel: plt.Axes, places: Sequence[float], gaps: Sequence[Gap], colour: str, name: str | None
) -> None:
    panel.errorbar(
        places,
        [gap.mean for gap in gaps],
        yerr=[[gap.mean - gap.low for gap in gaps], [gap.high - gap.mean for gap in gaps]],
        label=name,
        color=colour,
        marker="o",
        capsize=3,
        linestyle="none",
    )


def draw_goodput(runs: pd.DataFrame, file: Path) -> None:
    """Draw goodput against the mean time between failures: a column for each number of workers,
    with restarts above and without them below; at the right end of a panel there are no failures.

    The bars are ranges over the seeds.

    Args:
        runs: paradigm, workers, mean_gap_s (infinity: no failures), restarts, goodput.
        file: the picture.
    """
    looks = {  # name -> paradigm's colour and marker
        "asp": (COLOURS["asp"], "o"),
        "ssp": (COLOURS["ssp(staleness=15)"], "s"),
        "lagtuner": (COLOURS["lagtuner(bound=hard)"], "^"),
        "bsp": (COLOURS["bsp"], "D"),
        "k-sync": (COLOURS["lagtuner(bound=literal)"], "v"),
        "backup-workers": ("#a6611a", "x"),
    }
    sizes, gaps = sorted(set(runs.workers)), sorted(set(runs.mean_gap_s))
    figure, panels = plt.subplots(
        2, len(sizes), figsize=(11, 6.4), sharex=True, sharey=True, layout="constrained"
    )
    for row, restarts in zip(panels, (True, False), strict=True):
        for panel, workers in zip(row, sizes, strict=True):
            chosen = runs[
                (runs.workers == workers)
                & ((runs.restarts == restarts) | runs.mean_gap_s.map(isinf))
            ]
            for name, (colour, marker) in looks.items():
                goodput = chosen[chosen.paradigm == name].groupby("mean_gap_s").goodput
                means = goodput.mean()[gaps]
                panel.errorbar(
                    range(len(gaps)),
                    means,
                    yerr=[means - goodput.min()[gaps], goodput.max()[gaps] - means],
                    label=name,
                    color=colour,
                    marker=marker,
                    markersize=4,
                    capsize=2,
                    linewidth=1.1,
                )
            panel.axvline(len(gaps) - 1.5, color="#bbbbbb", linestyle=":", linewidth=0.8)
            panel.grid(axis="y", color="#dddddd", linewidth=0.6)
            panel.set_title(f"{workers:,} workers, {'restarts' if restarts else 'no restarts'}")
            panel.set(xticks=range(len(gaps)), ylim=(0, 1.05))
            panel.set_xticklabels(
                ["none" if isinf(gap) else f"{gap:,.0f}" for gap in gaps], fontsize=8
            )
        row[0].set_ylabel("samples / s and worker")
    figure.supxlabel("mean time between the failures of a worker, s (virtual; a step is 1 s)")
    figure.legend(
        *panels[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=len(looks)
    )
    _save(figure, file)


def draw_balanced(points: pd.DataFrame, file: Path) -> None:
    """Draw what each paradigm makes of a cluster: its final measure beside BSP's against its
    throughput; a row for each model, a column for each cluster.

    The bars are 95 % intervals over the seeds, where there are several.

    Args:
        points: task, cluster, paradigm (without the parameters that differ between clusters), pace
            (in ASP's), measure, gap, low, high.
        file: the picture.
    """
    looks = {  # paradigm -> colour and marker
        "bsp": (COLOURS["bsp"], "D"),
        "asp": (COLOURS["asp"], "o"),
        "ssp(staleness=3)": (COLOURS["ssp(staleness=15)"], "s"),
        "lagtuner(bound=hard)": (COLOURS["lagtuner(bound=hard)"], "^"),
        "lagtuner(bound=literal)": (COLOURS["lagtuner(bound=literal)"], "v"),
        "k-sync": ("#a6611a", "x"),
        "backup-workers": ("#dfc27d", "+"),
        "balanced(paradigm=asp)": ("#fa9fb5", "P"),
        "balanced": ("#c51b8a", "*"),
    }
    tasks, clusters = (list(dict.fromkeys(points[key])) for key in ("task", "cluster"))
    figure, panels = plt.subplots(
        len(tasks),
        len(clusters),
        figsize=(11, 6.4),
        sharex=True,
        sharey="row",
        layout="constrained",
    )
    for row, task in zip(panels, tasks, strict=True):
        for panel, cluster in zip(row, clusters, strict=True):
            chosen = points[(points.task == task) & (points.cluster == cluster)]
            for name, (colour, marker) in looks.items():
                found = chosen[chosen.paradigm == name]
                if found.empty:
                    continue
                point = found.iloc[0]
                panel.errorbar(
                    point.pace,
                    point.gap,
                    yerr=None
                    if pd.isna(point.low)
                    else [[point.gap - point.low], [point.high - point.gap]],
                    label=name,
                    color=colour,
                    marker=marker,
                    markersize=11 if marker == "*" else 7,
                    capsize=2,
                    linewidth=1.0,
                    linestyle="none",
                )
            panel.axhline(0, color="#bbbbbb", linestyle=":", linewidth=0.8)
            panel.set_title(f"{task}, {cluster}")
        row[0].set_ylabel(points[points.task == task].measure.iloc[0])
    figure.supxlabel("samples/s in those of the workers alone")
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
    _save(figure, file)


def _place(share: float) -> float:
    """Return the place on the axis of shares, which are halves of each other: even steps, with 0
    one step below the smallest.
    """
    return 6 + log2(share) if share else 0.0


def _save(figure: plt.Figure, file: Path) -> None:
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
