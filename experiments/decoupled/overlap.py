"""Write results/overlap.csv from runs of overlap*.yaml under RUNS: python experiments/decoupled/overlap.py RUNS"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

import raysync
from raysync.core.modules import module_of

HERE = Path(__file__).parent


def rows(path: Path, sweep: str) -> list[dict[str, object]]:
    """Of one run: each stage's busy share of the time from the first push to the last, and batches a second in it."""
    record = raysync.load(path)
    pushes = record.pushes.assign(module=record.pushes.worker.map(module_of))
    begin_s, end_s = pushes.pushed_at_s.min(), pushes.pushed_at_s.max()
    within = pushes[pushes.pushed_at_s > begin_s]
    return [{"file": sweep, "locked": record.summary["paradigm_parameters"]["locked"], "seed": record.summary["seed"],
             "module": module, "busy_share": stage.busy_s.sum() / (end_s - begin_s),
             "batches_per_s": len(stage) / (end_s - begin_s)} for module, stage in within.groupby("module")]


if __name__ == "__main__":
    found = [row for name in ("overlap", "overlap-emulated")
             for path in sorted(Path(sys.argv[1]).glob(f"decoupled-{name}/*/")) for row in rows(path, name)]
    pd.DataFrame(found).to_csv(HERE / "results" / "overlap.csv", index=False, float_format="%.4g")
