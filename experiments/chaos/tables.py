"""The tables of both pages, and the numbers in their prose."""

from __future__ import annotations

import pandas as pd
from labtables import Results, markdown
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
    file = results.folder / "results" / f"chaos.{name}.csv"
    return pd.read_csv(file, keep_default_na=False)


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    schedules = read(results, "schedules")
    counts = [[text, f"{schedules[name].sum():,}"] for name, text in COUNTS.items()]
    targets = read(results, "targets").groupby("target")[["faults", "survived", "spared"]].sum()
    kinds = [
        [f"`{name}`", *map(str, row), at_most(row[0]) if row[0] == row[1] else ""]
        for name, row in zip(targets.index, targets.values, strict=True)
    ]
    runs = [
        [
            f"{row.run}",
            f"{row.faults}",
            f"{row.wall_s:.0f} (undisturbed {row.undisturbed_wall_s:.0f})",
            f"{row.lost_s_per_fault:.1f}",
            f"{row.resumed} ({row.resumed_away_s:.0f} s away, {row.resumed_lost_s:.0f} s lost)",
            f"{row.samples_per_s:,.0f}",
            f"{row.undisturbed_samples_per_s:,.0f}",
        ]
        for row in read(results, "ray").itertuples()
    ]
    return {
        "schedules": markdown(["of the schedules", "number"], counts),
        "targets": markdown(
            ["struck", "faults", "survived", "spared", "lost: below, at 95 %"], kinds
        ),
        "ray": markdown(
            [
                "run",
                "faults",
                "seconds in all",
                "seconds lost a fault",
                "resumptions in the journal",
                "samples/s with faults",
                "without",
            ],
            runs,
        ),
    }


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
