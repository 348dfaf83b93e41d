"""The tables of the pages, and the numbers in their prose."""

from __future__ import annotations

from math import ceil, log2, sqrt

import numpy as np
import pandas as pd
from labtables import Results, range_text, tabulate
from scipy import stats

from raysync.results.statistics import estimate

RADIUS, WORKERS = 10.0, 4
UNBOUNDED = ("lagtuner(bound=literal)", "asp")
"""The paradigms that keep no bound on the lead."""


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    regret, runs = measured(results)
    return {
        "by paradigm": by_paradigm(regret[regret.radius == RADIUS]),
        "runs": assumptions(runs[runs.radius == RADIUS]),
        "radii": radii(regret[regret.paradigm == "ssp(staleness=3)"]),
        "checks": checks(regret, runs),
    }


def measured(results: Results) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the regret of each run at each T, and the facts of each run."""
    return results.of_runs("regret"), results.of_runs("regret.runs", "regret")


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    regret, runs = measured(results)
    main = regret[regret.radius == RADIUS]
    held = regret[~regret.paradigm.isin(UNBOUNDED)]
    final = at_end(main[~main.paradigm.isin(UNBOUNDED)]).groupby("paradigm")
    loose = final.bound.mean() / final.regret.mean()
    useful = [useful_from(its) for name, its in main.groupby("paradigm") if name not in UNBOUNDED]
    slopes = [exponents(its).mean() for _, its in main.groupby("paradigm")]
    far = regret[regret.radius == regret.radius.max()]
    calls = runs[runs.paradigm == "lagtuner(bound=hard)"]
    return {
        "T": f"{regret['T'].max():,}",
        "held": f"{(held.regret < held.bound).sum()} of {len(held)}",
        "share": f"{(held.regret / held.bound).max():.1%}",
        "loose": range_text(loose, ",.0f"),
        "useful": range_text(useful, ","),
        "exponents": range_text(slopes, ".3f"),
        "exponent, R = 100": f"{exponents(far).mean():.3f}",
        "literal, lead": f"{runs[runs.paradigm == 'lagtuner(bound=literal)'].lead_max.max():,}",
        "r* mean": f"{calls.extra_mean.mean():.1f}",
        "r* max": f"{calls.extra_max.max():.0f}",
        **{
            f"regret, {name}": interval_text(its.regret, 1)
            for name, its in at_end(main).groupby("paradigm")
        },
    }


def interval_text(values: pd.Series, digits: int) -> str:
    """Return the mean over the seeds and half the width of its 95 % interval as text."""
    over = estimate(list(values))
    return f"{over.mean:,.{digits}f} ± {over.high - over.mean:,.{digits}f}"


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


def at_end(regret: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the largest T."""
    return regret[regret["T"] == regret["T"].max()]


def useful_from(regret: pd.DataFrame) -> int:
    """Return the T, to two digits, from which the bound is below the regret of never learning."""
    final = at_end(regret)
    # nats a push that the best fixed weights save
    worth = final.never_learning.mean() / final["T"].max()
    return _rounded((final.bound.mean() / sqrt(final["T"].max()) / worth) ** 2)


def growth(regret: pd.DataFrame) -> dict[str, str]:
    """Return cells of a table: regret against its bound at the largest T, and how it grows."""
    final = at_end(regret)
    return {
        "regret R(T)": interval_text(final.regret, 1),
        "bound": f"{final.bound.mean():,.0f}",
        "bound / regret": f"{final.bound.mean() / final.regret.mean():,.0f}",
        "bound by measured delays": f"{final.delay_bound.mean():,.0f}",
        "exponent": interval_text(exponents(regret), 3),
        "of the last doubling": interval_text(last_doubling(regret), 3),
        "bound says something from T": f"{useful_from(regret):,}",
    }


def _rounded(value: float) -> int:
    """Round up to two digits."""
    unit = 10 ** max(0, int(np.log10(value)) - 1)
    return ceil(value / unit) * unit


def by_paradigm(regret: pd.DataFrame) -> str:
    """Tabulate the paradigms."""
    rows = []
    for name, its in regret.groupby("paradigm", sort=False):
        row = {"paradigm": name, "s": its.s.iloc[0]} | growth(its)
        if name in UNBOUNDED:
            row["bound"] = f"none ({row['bound']})"
            row["bound / regret"] = f"({row['bound / regret']})"
            row["bound says something from T"] = "-"
        rows.append(row)
    return tabulate(rows)


def radii(regret: pd.DataFrame) -> str:
    """Tabulate the radii, all under SSP(3)."""
    return tabulate(
        [{"R": f"{radius:g}"} | growth(its) for radius, its in regret.groupby("radius")]
    )


def assumptions(runs: pd.DataFrame) -> str:
    """Tabulate whether the runs met the theorems' assumptions."""
    rows = []
    for name, its in runs.groupby("paradigm", sort=False):
        s = its.s.iloc[0]
        limits = ("none", "none") if name in UNBOUNDED else (s, (2 * s + 1) * (WORKERS - 1))
        extra = (
            "-"
            if its.extra_max.isna().all()
            else f"{its.extra_mean.mean():.1f} / {its.extra_max.max():.0f}"
        )
        staleness = f"{its.staleness_mean.mean():.2f} / {its.staleness_max.max()}"
        rows.append(
            {
                "paradigm": name,
                "sigma": f"{its.sigma.iloc[0]:.3f}",
                "largest lead": f"{its.lead_max.max():,}",
                "limit": limits[0],
                "staleness mean / max": staleness,
                "limit ": limits[1],
                "r* mean / max": extra,
                "largest gradient norm": f"{its.gradient_max.max():.3f}",
                "largest norm of w": f"{its.norm_max.max():.4f}",
                "accuracy": f"{100 * its.final_accuracy.mean():.1f} %",
            }
        )
    return tabulate(rows)


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
                f" {delays.max():.1%} of that; which is below the bound for any paradigm"
                f" (see below) in {(regret.delay_bound < for_any_paradigm).sum()}."
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
