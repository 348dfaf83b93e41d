"""The tables of both pages, and the numbers in their prose."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import exp, inf

import numpy as np
import pandas as pd
from labtables import Results, by_seed, interval_cell, mean_cell, tabulate
from scipy import stats

from raysync.config import Experiment, Kill
from raysync.emulation.fault_plan import FaultPlan
from raysync.results.statistics import estimate, paired_difference

MEAN_GAP_S = 1000
"""The mean time between failures that the prose is about."""
SERVER_AWAY_S = 11
"""How long a lost server is away in servers.py."""
PARADIGMS = ("asp", "ssp", "lagtuner", "bsp", "k-sync", "backup-workers")


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    runs = results.of_runs("goodput")
    return {
        "kept": _kept(runs),
        "restarts": _by_gap(runs[runs.restarts]),
        "no restarts": _by_gap(runs[~runs.restarts | np.isinf(runs.mean_gap_s)]),
        "closed forms": _closed_forms(results),
        "ray": _ray(results),
        "servers": _servers(results),
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    runs, ray = results.of_runs("goodput"), results.of_runs("ray")
    lost = results.of_runs("servers")
    with_log = lost[(lost.way == "log")].groupby(["paradigm", "mean_gap_s"]).goodput.mean()
    log_shares = [
        (with_log[name, gap] / with_log[name, inf]) / (gap / (gap + SERVER_AWAY_S))
        for name, gap in with_log.index
        if gap < inf
    ]
    failing = runs[runs.mean_gap_s == MEAN_GAP_S].groupby(["paradigm", "workers", "restarts"])
    goodput = failing.goodput.mean()
    calm = runs[np.isinf(runs.mean_gap_s)].groupby(["paradigm", "workers"]).goodput.mean()
    most, fewest = runs.workers.max(), runs.workers.min()
    ratios = ray.virtual / ray.ray
    calm_ratios = ray.virtual_without_kills / ray.ray_without_kills
    kept = {
        f"{name} keeps": " and ".join(
            f"{goodput[name, workers, True] / calm[name, workers]:.0%}"
            for workers in (fewest, most)
        )
        for name in PARADIGMS
    }
    both = {
        f"{name} {'' if restarts else 'no '}restarts": f"{goodput[name, most, restarts]:.2f}"
        for name in ("ssp", "bsp", "k-sync", "asp")
        for restarts in (True, False)
    }
    return {
        **kept,
        **both,
        **{
            f"{name} by restarts": _by_restarts(runs, name)
            for name in ("ssp", "lagtuner", "bsp", "k-sync", "asp")
        },
        "server runs": f"{len(lost):,}",
        "server losses": f"{lost.losses.sum():,}",
        "log off by": f"{max(abs(1 - share) for share in log_shares):.0%}",
        "runs": f"{len(runs):,}",
        "losses": f"{runs.losses.sum():,}",
        "closed forms": f"{max(abs(1 - ratio) for *_, ratio in _checks(results)):.1%}",
        "ray ratios": " and ".join(f"{ratio:.2f}" for ratio in ratios),
        "ray calm ratios": " and ".join(f"{ratio:.2f}" for ratio in calm_ratios),
        "ray losses": " and ".join(map(str, ray.losses)),
        "lives": f"{_lives(results, int(fewest)):.0%}",
        "longest start": f"{ray.start_max_s.max():.0f}",
    }


def _lives(results: Results, workers: int) -> float:
    """Return the mean time until the first kill of a worker, over these workers and all seeds, as a
    share of the mean that was asked for.
    """
    experiment = results.experiment("goodput")
    [kill] = experiment.faults
    assert isinstance(kill, Kill), "another fault"
    assert kill.mean_gap_s is not None, "kills without a mean gap"
    slots = list(experiment.slots())[:workers]
    plans = [FaultPlan(experiment.model_copy(update={"seed": seed})) for seed in experiment.seeds]
    first = [plan.next_kill(slot, 0.0) for plan in plans for slot in slots]
    return sum(at for at, _ in filter(None, first)) / len(first) / kill.mean_gap_s


def _most(runs: pd.DataFrame, name: str, restarts: bool) -> pd.DataFrame:
    """Return the repeats of a paradigm with the most workers, at the gap of the prose."""
    alike = runs[(runs.workers == runs.workers.max()) & (runs.mean_gap_s == MEAN_GAP_S)]
    return alike[(alike.paradigm == name) & (alike.restarts == restarts)]


def _by_restarts(runs: pd.DataFrame, name: str) -> str:
    """Return what restarts change, paired by seed, with the interval."""
    change = paired_difference(
        *(by_seed(_most(runs, name, restarts), "goodput") for restarts in (True, False))
    )
    assert change.mean is not None, "no pairs"
    return interval_cell(change, "+.2f")


def _kept(runs: pd.DataFrame) -> str:
    """Tabulate the goodput of the fewest and the most workers, calm and failing."""
    fewest, most = runs.workers.min(), runs.workers.max()
    calm, failing = np.isinf(runs.mean_gap_s), runs.mean_gap_s == MEAN_GAP_S
    columns = {
        f"{fewest} workers, no failures": calm & (runs.workers == fewest),
        "restarts": failing & (runs.workers == fewest) & runs.restarts,
        f"{most:,} workers, no failures": calm & (runs.workers == most),
        "restarts ": failing & (runs.workers == most) & runs.restarts,
        "no restarts": failing & (runs.workers == most) & ~runs.restarts,
    }
    return tabulate(
        {"paradigm": f"`{name}`"}
        | {
            heading: _cell(runs[chosen & (runs.paradigm == name)])
            for heading, chosen in columns.items()
        }
        for name in PARADIGMS
    )


def _by_gap(runs: pd.DataFrame) -> str:
    """Tabulate goodput: a row for each number of workers and paradigm, a column for each mean time
    between failures.
    """
    gaps = sorted(set(runs.mean_gap_s), reverse=True)
    return tabulate(
        {"workers": f"{workers:,}", "paradigm": f"`{name}`"}
        | {_gap_text(gap): _cell(chosen[chosen.mean_gap_s == gap]) for gap in gaps}
        for workers, alike in runs.groupby("workers")
        for name in PARADIGMS
        for chosen in [alike[alike.paradigm == name]]
    )


def _gap_text(gap: float) -> str:
    return "no failures" if gap == inf else f"{gap:,.0f} s"


def _cell(repeats: pd.DataFrame) -> str:
    return mean_cell(repeats, "goodput", ".3f")


# ---- closed forms ----


@cache
def _laplace(sigma: float, mean_gap_s: float) -> float:
    """Return E exp(-X / M) for a step X, in seconds, of mean 1: the chance that a worker survives
    it.
    """
    return stats.lognorm(sigma, scale=exp(-(sigma**2) / 2)).expect(
        lambda x: np.exp(-x / mean_gap_s)
    )


@cache
def _slowest_s(sigma: float, workers: int) -> float:
    """Return the mean of the longest of so many steps."""
    steps = stats.lognorm(sigma, scale=exp(-(sigma**2) / 2))
    grid = np.linspace(0, exp(8 * sigma), 4001)
    return float(np.trapezoid(1 - steps.cdf(grid) ** workers, grid))


def asp_with_restarts(experiment: Experiment, workers: int, mean_gap_s: float) -> float:
    """Return the samples of a worker of ASP by second: those of a life, by the mean time from one
    life to the next.
    """
    survives = _laplace(experiment.workers[0].jitter.sigma, mean_gap_s)
    away_s = experiment.cluster.restarts.backoff_s + experiment.workers[0].start_s
    return survives / (1 - survives) / (mean_gap_s + away_s)


def asp_without(experiment: Experiment, workers: int, mean_gap_s: float) -> float:
    """Return the same for the one life that there is, which the end of the run may cut short."""
    survives = _laplace(experiment.workers[0].jitter.sigma, mean_gap_s)
    seconds = _seconds(experiment)
    return survives / (1 - survives) * (1 - survives**seconds) / seconds


def bsp_without(experiment: Experiment, workers: int, mean_gap_s: float) -> float:
    """Return the same for BSP: a round lasts as long as the longest step of those that are left,
    whose number falls exponentially.
    """
    sigma, seconds = experiment.workers[0].jitter.sigma, _seconds(experiment)
    at, samples = 0.0, 0.0
    while at < seconds:
        alive = workers * exp(-at / mean_gap_s)
        round_s = _slowest_s(sigma, max(1, round(alive)))
        at += round_s
        if at <= seconds:
            samples += workers * exp(-at / mean_gap_s)
    return samples / seconds / workers


def _seconds(experiment: Experiment) -> float:
    assert experiment.stop is not None, "a run without an end"
    assert experiment.stop.after_s is not None, "a run without an end"
    return experiment.stop.after_s


FORMS: dict[tuple[str, bool], Callable[[Experiment, int, float], float]] = {
    ("asp", True): asp_with_restarts,
    ("asp", False): asp_without,
    ("bsp", False): bsp_without,
}
"""(paradigm, restarts) -> its closed form."""


def _checks(results: Results) -> list[tuple[str, bool, int, float, float, float, float]]:
    """Return paradigm, restarts, workers, mean gap, measured, expected, and their ratio; for 1,000
    workers, whose chance is small.
    """
    runs, experiment = results.of_runs("goodput"), results.experiment("goodput")
    most = runs[(runs.workers == runs.workers.max()) & ~np.isinf(runs.mean_gap_s)]
    rows = []
    for (name, restarts), form in FORMS.items():
        chosen = most[(most.paradigm == name) & (most.restarts == restarts)]
        for gap, repeats in chosen.groupby("mean_gap_s"):
            workers = int(repeats.workers.iloc[0])
            measured = estimate(list(repeats.goodput)).mean
            expected = form(experiment, workers, float(gap))
            rows.append((name, restarts, workers, gap, measured, expected, measured / expected))
    return rows


def _closed_forms(results: Results) -> str:
    return tabulate(
        {
            "1,000 workers": f"`{name}`, {'restarts' if restarts else 'no restarts'}",
            "mean time between failures, s": f"{gap:,.0f}",
            "measured": f"{measured:.4f}",
            "closed form": f"{expected:.4f}",
            "ratio": f"{ratio:.3f}",
        }
        for name, restarts, _, gap, measured, expected, ratio in _checks(results)
    )


# ---- servers ----

WAYS = {
    "log": "comes back with its log",
    "checkpoint 10": "checkpoint, one every 10 s",
    "checkpoint 60": "checkpoint, one every 60 s",
    "nothing": "begins anew",
}
"""Way to go on -> what the table calls it."""


def _servers(results: Results) -> str:
    runs = results.of_runs("servers")
    gaps = sorted(set(runs.mean_gap_s), reverse=True)
    rows = []
    for paradigm, alike in runs.groupby("paradigm"):
        calm = alike[np.isinf(alike.mean_gap_s)]
        for way, text in WAYS.items():
            chosen = alike[alike.way == way]
            cells = {
                _gap_text(gap): _cell(calm if gap == inf else chosen[chosen.mean_gap_s == gap])
                for gap in gaps
            }
            rows.append({"paradigm": f"`{paradigm}`", "a lost server, or run": text} | cells)
    return tabulate(rows)


# ---- Ray ----


def _ray(results: Results) -> str:
    return tabulate(
        {
            "paradigm": f"`{run.paradigm}`",
            "no kills, samples/s: Ray": f"{run.ray_without_kills:.0f}",
            "virtual": f"{run.virtual_without_kills:.0f}",
            "ratio": f"{run.virtual_without_kills / run.ray_without_kills:.2f}",
            "workers lost": run.losses,
            "start, mean (longest), s": f"{run.start_mean_s:.1f} ({run.start_max_s:.1f})",
            "kills, samples/s: Ray": f"{run.ray:.0f}",
            "virtual ": f"{run.virtual:.0f}",
            "ratio ": f"{run.virtual / run.ray:.2f}",
        }
        for run in results.of_runs("ray").itertuples()
    )
