"""Write results/switch-cost.csv from runs of switch-cost.yaml: python experiments/sync-switch/switch_cost.py RUN..."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

import raysync

OUT = Path(__file__).parent / "results" / "switch-cost.csv"


def row(path: Path) -> dict[str, object]:
    """Of one run with one switch. The median step is from release to push."""
    record = raysync.load(path)
    [switch] = record.summary["switches"]
    steps_s = record.pushes.pushed_at_s - record.pushes.released_at_s
    return {"run": f"to {switch['to']}, seed {record.summary['seed']}", "workers": record.summary["workers"],
            "switch_at_s": round(switch["at_s"], 3), "first_push_after_s": round(switch["first_push_s"], 4),
            "median_step_s": round(float(steps_s.median()), 4)}


if __name__ == "__main__":
    rows = sorted((row(Path(path)) for path in sys.argv[1:]), key=lambda one: str(one["run"]))
    pd.DataFrame(rows).to_csv(OUT, index=False)
