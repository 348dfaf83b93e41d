"""Write results/overlap.csv from runs of overlap*.yaml under RUNS.

python experiments/decoupled/overlap.py RUNS
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from labtables import records_of  # noqa: E402

from raysync import config  # noqa: E402
from raysync.core.ids import WorkerId  # noqa: E402
from raysync.record.reader import RunRecord  # noqa: E402

FILES = ("overlap", "overlap-emulated")


def rows(record: RunRecord, sweep: str) -> list[dict[str, object]]:
    """Return for each stage of a run its busy share of the time from the first push to the last,
    and its batches a second in that time.
    """
    pushes = record.pushes.assign(
        module=record.pushes.worker.map(lambda worker: WorkerId(worker).stage)
    )
    begin_s, end_s = pushes.pushed_at_s.min(), pushes.pushed_at_s.max()
    within = pushes[pushes.pushed_at_s > begin_s]
    return [
        {
            "file": sweep,
            "locked": record.summary["paradigm_parameters"]["locked"],
            "seed": record.summary["seed"],
            "module": module,
            "busy_share": stage.busy_s.sum() / (end_s - begin_s),
            "batches_per_s": len(stage) / (end_s - begin_s),
        }
        for module, stage in within.groupby("module")
    ]


def collected(runs: Path) -> pd.DataFrame:
    """Return the rows of the runs that count, which `raysync compare` left in a folder."""
    return pd.DataFrame(
        [
            row
            for name in FILES
            for experiment in [config.load(HERE / f"{name}.yaml")]
            for record in records_of((runs / experiment.name).glob("*/"), experiment)
            for row in rows(record, name)
        ]
    )


if __name__ == "__main__":
    collected(Path(sys.argv[1])).to_csv(
        HERE / "results" / "overlap.csv", index=False, float_format="%.4g"
    )
