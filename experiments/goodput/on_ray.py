"""Eight workers on Ray whose processes are killed, and what the virtual clock predicts of them.

    python experiments/goodput/on_ray.py RUNS            prints the rows (8 minutes)
    python experiments/goodput/on_ray.py RUNS --write    and puts them into results/ray.csv

A paradigm runs on Ray without kills and with them, and then on the virtual clock. The kills are
drawn from the seed, so both have the same. What the virtual clock has to be told is how long a
process takes to start: `start_s` is the mean time that the workers of the same run on Ray were away
(`away_s` in its journal), without the back-off.
"""

import argparse
import os
import platform
import time
from pathlib import Path
from statistics import mean

import pandas as pd

from raysync import config
from raysync.core.events import Joined, Left
from raysync.core.journal import Entry
from raysync.record.reader import RunRecord
from raysync.running.engines import engine_for
from raysync.running.run import run_in
from raysync.training.preparation import prepare

HERE = Path(__file__).parent
SETTINGS = HERE / "ray.yaml"
CALM_S = 60
"""The seconds of a run without kills, whose rate does not change."""


def starts_s(record: RunRecord) -> list[float]:
    """Return the seconds that each restarted process took to start."""
    backoff_s = record.config.cluster.restarts.backoff_s
    return [
        line.report.away_s - backoff_s
        for line in record.journal()
        if isinstance(line, Entry) and isinstance(line.event, Joined) and "away_s" in line.report
    ]


def losses(record: RunRecord) -> int:
    """Return how often a worker was lost."""
    return sum(
        isinstance(line, Entry) and isinstance(line.event, Left) for line in record.journal()
    )


def measured(choice: config.ParadigmChoice, *overrides: str) -> RunRecord:
    """Return the record of a run of the file with these settings."""
    experiment = config.load(SETTINGS, overrides)
    with engine_for(experiment) as engine:
        return run_in(engine, prepare(experiment), choice)


def row(choice: config.ParadigmChoice, output: str) -> dict[str, object]:
    """Return a paradigm's row: samples per second on Ray and predicted, without and with kills."""
    to, calm = f"output={output}", ("faults=[]", f"stop.after_s={CALM_S}")
    ray_calm, ray = measured(choice, to, *calm), measured(choice, to)
    started = starts_s(ray)
    start = f"workers.0.start_s={mean(started):.4g}"
    virtual_calm = measured(choice, to, *calm, "engine=virtual")
    virtual = measured(choice, to, start, "engine=virtual")
    throughput = {
        name: round(record.summary["throughput_samples_per_s"], 1)
        for name, record in (
            ("ray_without_kills", ray_calm),
            ("ray", ray),
            ("virtual_without_kills", virtual_calm),
            ("virtual", virtual),
        )
    }
    return {
        "paradigm": choice.label,
        "seed": ray.config.seed,
        "status": ray.summary["status"],
        "losses": losses(ray),
        "restarts": len(started),
        "start_mean_s": round(mean(started), 2),
        "start_max_s": round(max(started), 2),
        "losses_virtual": losses(virtual),
        **throughput,
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", help="a folder for the records")
    parser.add_argument("--write", action="store_true", help="write results/ray.csv")
    arguments = parser.parse_args()
    rows = pd.DataFrame([row(choice, arguments.runs) for choice in config.load(SETTINGS).paradigms])
    print(rows.T.to_string())
    if arguments.write:
        rows.to_csv(HERE / "results" / "ray.csv", index=False)


if __name__ == "__main__":
    main()
