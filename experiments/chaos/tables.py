"""The tables of both pages, and the numbers in their prose."""

from __future__ import annotations

import pandas as pd
from labtables import Results, tabulate
from scipy.stats import binomtest

COUNTS = {
    "exact": "drawn to go on exactly",
    "resumed exactly": "resumptions, exactly",
    "cut": "drawn to go on from a cut",
    "resumed from a cut": "resumptions from a cut",
    "trained": "with a model that is trained",
    "BSP weights bit-equal": "BSP from a cut, weights bit-equal",
    "workers lost": "workers lost on the way",
    "servers lost": "servers lost on the way, and back",
    "events": "events in the journals",
}
"""Column of the schedules -> what it counts."""


def at_most(trials: int) -> str:
    """Return the share of failures that none in so many trials excludes at 95 %, one-sided."""
    high = binomtest(0, trials, alternative="less").proportion_ci(0.95).high
    return f"{100 * high:.2g} %"


def read(results: Results, name: str) -> pd.DataFrame:
    """Return a table of results/, which keep.py wrote."""
    return results.table(f"chaos.{name}", keep_default_na=False)


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    schedules = read(results, "schedules")
    counts = [
        {"of the schedules": text, "number": f"{schedules[name].sum():,}"}
        for name, text in COUNTS.items()
    ]
    targets = read(results, "targets").groupby("target")[["faults", "survived", "spared"]].sum()
    kinds = [
        {"struck": f"`{name}`", **row}
        | {"lost: below, at 95 %": at_most(row.faults) if row.faults == row.survived else ""}
        for name, row in targets.iterrows()
    ]
    runs = [
        {
            "run": row.run,
            "faults": row.faults,
            "seconds in all": f"{row.wall_s:.0f} (undisturbed {row.undisturbed_wall_s:.0f})",
            "seconds lost a fault": f"{row.lost_s_per_fault:.1f}",
            "resumptions in the journal": (
                f"{row.resumed} ({row.resumed_away_s:.0f} s away, {row.resumed_lost_s:.0f} s lost)"
            ),
            "samples/s with faults": f"{row.samples_per_s:,.0f}",
            "without": f"{row.undisturbed_samples_per_s:,.0f}",
        }
        for row in read(results, "ray").itertuples()
    ]
    return {"schedules": tabulate(counts), "targets": tabulate(kinds), "ray": tabulate(runs)}


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    schedules, runs = read(results, "schedules"), read(results, "ray")
    failed = [name for name in runs.oracles_failed if name]
    faults, drawn = runs.faults.sum(), schedules.schedules.sum()
    assert faults == runs.survived.sum(), "the bounds are for no loss at all"
    assert schedules.failures.sum() == 0, "the bounds are for no loss at all"
    return {
        "schedules": f"{drawn:,}",
        "failures": f"{schedules.failures.sum():,}",
        "cpu minutes": f"{schedules.minutes.sum():.0f}",
        "faults": f"{faults:,}",
        "faults at most": at_most(faults),
        "schedules at most": at_most(drawn),
        "of one run": f"{runs.faults.max():,}",
        "failed": "once" if len(failed) == 1 else f"{len(failed)} times",
        "oracles": "; ".join(failed) or "none",
    }
