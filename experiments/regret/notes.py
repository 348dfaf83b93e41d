"""Fill the tables of notes.md and draw the picture, from regret.csv and runs.csv.

python experiments/regret/notes.py
"""

import sys
from collections.abc import Callable
from math import ceil, log2, sqrt
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from scipy import stats

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from labtables import counted  # noqa: E402

from raysync import config  # noqa: E402

BEGIN, END = "<!-- notes.py: begin -->\n", "<!-- readme.py: end -->\n"
RADIUS, WORKERS = 10.0, 4
UNBOUNDED = ("lagtuner(bound=literal)", "asp")
"""The paradigms that keep no bound on the lead."""
LOOK = {  # colour, line, marker
    "ssp(staleness=0)": ("#74a9cf", "-", "o"),
    "ssp(staleness=3)": ("#2b8cbe", "-", "o"),
    "ssp(staleness=6)": ("#045a8d", "-", "o"),
    "ssp(staleness=15)": ("#023047", "-", "o"),
    "lagtuner(bound=hard)": ("#e6550d", "--", "s"),
    "lagtuner(bound=literal)": ("#31a354", "-.", "^"),
    "asp": ("#756bb1", ":", "x"),
}


def interval(values: pd.Series) -> tuple[float, float]:
    """Return the mean over the seeds, and half the width of its 95 % interval (Student's t)."""
    return values.mean(), stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)


def interval_text(values: pd.Series, digits: int) -> str:
    """Return mean and half width as text."""
    mean, half = interval(values)
    return f"{mean:,.{digits}f} ± {half:,.{digits}f}"


def exponents(regret: pd.DataFrame) -> pd.Series:
    """Return for each seed the slope of log R over log T, by least squares over all T."""
    return pd.Series(
        [
            stats.linregress(np.log(run["T"]), np.log(run.regret)).slope
            for _, run in regret.groupby("seed")
        ]
    )


def last_doubling(regret: pd.DataFrame) -> pd.Series:
    """Return for each seed log2 R(T) / R(T / 2) at the largest T."""
    return pd.Series(
        [log2(run.regret.iloc[-1] / run.regret.iloc[-2]) for _, run in regret.groupby("seed")]
    )


def growth(regret: pd.DataFrame) -> list[str]:
    """Return cells of a table: regret against its bound at the largest T, and how it grows."""
    final = regret[regret["T"] == regret["T"].max()]
    # nats a push that the best fixed weights save
    worth = final.never_learning.mean() / final["T"].max()
    useful = (final.bound.mean() / sqrt(final["T"].max()) / worth) ** 2
    return [
        interval_text(final.regret, 1),
        f"{final.bound.mean():,.0f}",
        f"{final.bound.mean() / final.regret.mean():,.0f}",
        f"{final.delay_bound.mean():,.0f}",
        interval_text(exponents(regret), 3),
        interval_text(last_doubling(regret), 3),
        f"{_rounded(useful):,}",
    ]


GROWTH = [
    "regret R(T)",
    "bound",
    "bound / regret",
    "bound by measured delays",
    "exponent",
    "of the last doubling",
    "bound says something from T",
]


def _rounded(value: float) -> int:
    """Round up to two digits."""
    unit = 10 ** max(0, int(np.log10(value)) - 1)
    return ceil(value / unit) * unit


def by_paradigm(regret: pd.DataFrame) -> str:
    """Tabulate the paradigms."""
    rows = []
    for name, its in regret.groupby("paradigm", sort=False):
        cells = growth(its)
        if name in UNBOUNDED:
            cells[1], cells[2], cells[6] = f"none ({cells[1]})", f"({cells[2]})", "-"
        rows.append([name, str(its.s.iloc[0]), *cells])
    return _table(["paradigm", "s", *GROWTH], rows)


def radii(regret: pd.DataFrame) -> str:
    """Tabulate the radii, all under SSP(3)."""
    rows = [[f"{radius:g}", *growth(its)] for radius, its in regret.groupby("radius")]
    return _table(["R", *GROWTH], rows)


def assumptions(runs: pd.DataFrame) -> str:
    """Tabulate whether the runs met the theorems' assumptions."""
    rows = []
    for name, its in runs.groupby("paradigm", sort=False):
        s = its.s.iloc[0]
        limits = (
            ("none", "none") if name in UNBOUNDED else (str(s), str((2 * s + 1) * (WORKERS - 1)))
        )
        extra = (
            "-"
            if its.extra_max.isna().all()
            else f"{its.extra_mean.mean():.1f} / {its.extra_max.max():.0f}"
        )
        rows.append(
            [
                name,
                f"{its.sigma.iloc[0]:.3f}",
                f"{its.lead_max.max():,}",
                limits[0],
                f"{its.staleness_mean.mean():.2f} / {its.staleness_max.max()}",
                limits[1],
                extra,
                f"{its.gradient_max.max():.3f}",
                f"{its.norm_max.max():.4f}",
                f"{100 * its.final_accuracy.mean():.1f} %",
            ]
        )
    return _table(
        [
            "paradigm",
            "sigma",
            "largest lead",
            "limit",
            "staleness mean / max",
            "limit",
            "r* mean / max",
            "largest gradient norm",
            "largest norm of w",
            "accuracy",
        ],
        rows,
    )


def checks(regret: pd.DataFrame, runs: pd.DataFrame) -> str:
    """List what was checked in every run."""
    held = regret[~regret.paradigm.isin(UNBOUNDED)]
    shares, delays = held.regret / held.bound, regret.regret / regret.delay_bound
    kappa = 2 * (regret.s + 1) * WORKERS
    per_root = 2 * regret.radius * np.sqrt(regret["T"])  # F L sqrt(T)
    for_any_paradigm = per_root * (np.sqrt(kappa) + (2 * WORKERS - 1) / np.sqrt(kappa))
    literal = regret[regret.paradigm == "lagtuner(bound=literal)"].groupby("T").lead_max.max()
    return "\n".join(
        [
            (
                f"- Runs: {len(runs)}, {runs.seed.nunique()} seeds each, {regret['T'].max():,}"
                " pushes a run; regret at T ="
                f" {', '.join(f'{mark:,}' for mark in sorted(regret['T'].unique()))}. ± is half of"
                " the 95 % interval over the seeds (Student's t)."
            ),
            (
                "- Under a paradigm that keeps s, the regret was below the theorem's bound in"
                f" {(shares < 1).sum()} of {len(shares)} cases (a run at a T), and at most"
                f" {shares.max():.1%} of it. Under all paradigms it was below what the proof"
                f" gives for the measured delays in {(delays < 1).sum()} of {len(delays)} cases,"
                " and at most"
                f" {delays.max():.1%} of that; which is below the bound for any paradigm (see the"
                f" verdict) in {(regret.delay_bound < for_any_paradigm).sum()}."
            ),
            (
                "- Largest lead of `lagtuner(bound=literal)` up to each of these T:"
                f" {', '.join(f'{lead:,}' for lead in literal)}."
            ),
            (
                f"- Largest gradient norm: {runs.gradient_max.max():.3f}; L = {sqrt(2):.3f}."
                f" Largest |w| / R: {(runs.norm_max / runs.radius).max():.6f}."
            ),
            (
                "- w* lies on the surface of the ball in"
                f" {(regret.best_norm > 0.9999 * regret.radius).sum()} of {len(regret)} cases. Its"
                f" certified error is at most {regret.gap.max():.1g} nats of the whole sum, or"
                f" {(regret.gap / regret.regret).max():.0e} of the regret."
            ),
            (
                "- The losses computed again from the order of the pushes differ from the recorded"
                f" ones by at most {runs.loss_error_max.max():.0e} nats."
            ),
            f"- Measured on {runs.machine.iloc[0]}, {runs.date.max()}.",
        ]
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ["---"] * len(header), *rows])


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


def write_page() -> None:
    """Put the tables into notes.md and draw the picture."""
    experiment = config.load(HERE / "regret.yaml")
    regret, runs = (
        counted(pd.read_csv(HERE / name), experiment) for name in ("regret.csv", "runs.csv")
    )
    main, others = regret[regret.radius == RADIUS], regret[regret.paradigm == "ssp(staleness=3)"]
    picture(main, others)
    last = f"{regret['T'].max():,}"
    text = (
        f"Regret at T = {last}, R = {RADIUS:g}:\n\n{by_paradigm(main)}\n\n"
        f"What the runs were like, R = {RADIUS:g}:\n\n"
        f"{assumptions(runs[runs.radius == RADIUS])}\n\n"
        f"`ssp(staleness=3)` in balls of other radii, T = {last}:\n\n{radii(others)}\n\n"
        f"{checks(regret, runs)}\n"
    )
    page = HERE / "notes.md"
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(head + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")
    print(text)


if __name__ == "__main__":
    write_page()
