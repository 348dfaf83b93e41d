"""Write results/switch-cost.csv from runs of switch-cost.yaml.

python experiments/sync-switch/switch_cost.py RUN...
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from labtables import records_of  # noqa: E402

from raysync import config  # noqa: E402
from raysync.record.reader import RunRecord  # noqa: E402


def row(record: RunRecord) -> dict[str, object]:
    """Return the row of a run with one switch. The median step is from release to push."""
    [switch] = record.summary["switches"]
    steps_s = record.pushes.pushed_at_s - record.pushes.released_at_s
    return {
        "run": f"to {switch['to']}",
        "seed": record.summary["seed"],
        "workers": record.summary["workers"],
        "switch_at_s": round(switch["at_s"], 3),
        "first_push_after_s": round(switch["first_push_s"], 4),
        "median_step_s": round(float(steps_s.median()), 4),
    }


if __name__ == "__main__":
    kept = records_of(map(Path, sys.argv[1:]), config.load(HERE / "switch-cost.yaml"))
    rows = pd.DataFrame(map(row, kept)).sort_values(["run", "seed"])
    rows.to_csv(HERE / "results" / "switch-cost.csv", index=False)
