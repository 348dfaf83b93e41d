"""Draw regret.png, from the results.

python experiments/regret/picture.py
"""

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from labtables import Results  # noqa: E402

RADIUS = 10.0
LOOK = {  # colour, line, marker
    "ssp(staleness=0)": ("#74a9cf", "-", "o"),
    "ssp(staleness=3)": ("#2b8cbe", "-", "o"),
    "ssp(staleness=6)": ("#045a8d", "-", "o"),
    "ssp(staleness=15)": ("#023047", "-", "o"),
    "lagtuner(bound=hard)": ("#e6550d", "--", "s"),
    "lagtuner(bound=literal)": ("#31a354", "-.", "^"),
    "asp": ("#756bb1", ":", "x"),
}


def picture(main: pd.DataFrame, others: pd.DataFrame) -> None:
    """Draw regret.png: all paradigms at one radius, and SSP(3) at all radii."""
    mpl.rcParams.update(
        {
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
        }
    )
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11.5, 5.2), width_ratios=(3, 2), layout="constrained"
    )
    _by_paradigm(left, main)
    _radii(right, others)
    for axes in (left, right):
        axes.set(xscale="log", yscale="log", xlabel="T, pushes", ylabel="regret R(T), nats")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.xaxis.set_major_locator(mpl.ticker.FixedLocator(sorted(main["T"].unique())))
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        axes.grid(which="major", color="#dddddd", linewidth=0.6)
    figure.savefig(HERE / "regret.png", dpi=130)
    plt.close(figure)


def _by_paradigm(axes: Axes, regret: pd.DataFrame) -> None:
    for name, its in regret.groupby("paradigm", sort=False):
        colour, line, marker = LOOK[name]
        _curve(
            axes,
            its,
            lambda group: group.regret,
            color=colour,
            linestyle=line,
            marker=marker,
            label=name,
            markerfacecolor="none" if marker != "o" else colour,
            markersize=7 if marker != "o" else 4,
        )
    for s, its in regret[regret.paradigm.str.startswith("ssp")].groupby("s"):
        colour = LOOK[f"ssp(staleness={s})"][0]
        bound = its.groupby("T").bound.mean()
        axes.plot(bound, color=colour, linestyle=(0, (4, 2)), linewidth=1)
        _label(axes, f"bound, s = {s}", bound, colour)
    unlearned = regret.groupby("T").never_learning.mean()
    axes.plot(unlearned, color="#777777", linewidth=1)
    _label(axes, "never learning (w = 0)", unlearned, "#555555")
    axes.set_title(f"R = {RADIUS:g}: regret, and the theorems' bounds", loc="left", fontsize=10)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4, frameon=False, fontsize=8)


def _radii(axes: Axes, regret: pd.DataFrame) -> None:
    for (radius, its), colour in zip(
        regret.groupby("radius"), ("#74a9cf", "#2b8cbe", "#023047"), strict=True
    ):
        _curve(axes, its, lambda group: group.regret, color=colour, marker="o", markersize=4)
        _label(axes, f"R = {radius:g}", its.groupby("T").regret.mean(), colour)
    marks = regret["T"].drop_duplicates()
    guide = pd.Series(3 * np.sqrt(marks.to_numpy()), index=marks)
    axes.plot(guide, color="#777777", linewidth=1, linestyle=(0, (4, 2)))
    _label(axes, "slope 1/2", guide, "#555555")
    axes.set_title("ssp(staleness=3) in balls of other radii", loc="left", fontsize=10)


def _label(axes: Axes, text: str, curve: pd.Series, colour: str) -> None:
    """Write a label at the right end of a curve."""
    axes.annotate(
        text,
        (curve.index[-1], curve.iloc[-1]),
        xytext=(7, 0),
        textcoords="offset points",
        va="center",
        color=colour,
        fontsize=8,
        annotation_clip=False,
    )


def _curve(
    axes: Axes, regret: pd.DataFrame, values: Callable[[pd.DataFrame], pd.Series], **look: object
) -> None:
    """Draw the mean over the seeds, and their range as a band."""
    seeds = values(regret).groupby(regret["T"])
    axes.plot(seeds.mean(), linewidth=1.4, **look)
    axes.fill_between(
        seeds.mean().index, seeds.min(), seeds.max(), color=look["color"], alpha=0.2, linewidth=0
    )


def main() -> None:
    """Draw the picture."""
    regret = Results(HERE).of_runs("regret")
    picture(regret[regret.radius == RADIUS], regret[regret.paradigm == "ssp(staleness=3)"])


if __name__ == "__main__":
    main()
