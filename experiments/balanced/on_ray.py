"""Confirm on Ray: short runs of the comparison's files, beside the virtual clock.

    python experiments/balanced/on_ray.py DATA RUNS     results/*.ray.csv (five minutes)

So many rounds' work of each file, under seed 0: on Ray with real gradients, on the virtual clock in
time only.
"""

import argparse
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from labtables import finished  # noqa: E402
from measure import COMPARED, data_of  # noqa: E402

from raysync import config  # noqa: E402
from raysync.running.engines import engine_for  # noqa: E402
from raysync.running.run import run_in  # noqa: E402
from raysync.training.preparation import prepare  # noqa: E402

ROUNDS = 40
LABELS = ("bsp", "asp", "balanced")


def measured(name: str, engine: str, *settings: str) -> Iterator[dict[str, object]]:
    """Yield a row for each paradigm, of runs of a file on an engine."""
    experiment = config.load(HERE / f"{name}.yaml", [f"engine={engine}", *settings])
    workers = sum(group.count for group in experiment.workers)
    samples = ROUNDS * workers * experiment.batch_size
    experiment = config.load(
        HERE / f"{name}.yaml",
        [f"engine={engine}", f"workload.samples={samples}", "evaluation.marks=2", *settings],
    )
    training = prepare(experiment)
    with engine_for(experiment) as runs_on:
        for choice in experiment.paradigms:
            if choice.label not in LABELS:
                continue
            summary = finished(run_in(runs_on, training, choice)).summary
            yield {
                "paradigm": choice.label,
                "engine": engine,
                "throughput_samples_per_s": summary["throughput_samples_per_s"],
                "wait_fraction": summary["wait_fraction"],
                "final_accuracy": summary["final_accuracy"] if engine == "ray" else None,
                "samples_each": "/".join(str(each["samples"]) for each in summary["per_worker"]),
                "date": time.strftime("%Y-%m-%d"),
                "cores": os.cpu_count(),
                "machine": platform.machine(),
            }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--files", nargs="+", default=COMPARED)
    arguments = parser.parse_args()
    for name in arguments.files:
        settings = [f"output={arguments.runs}", *data_of(name, arguments.data)]
        rows = [
            *measured(name, "ray", *settings),
            *measured(name, "virtual", "timing=only", *settings),
        ]
        pd.DataFrame(rows).to_csv(
            HERE / "results" / f"{name}.ray.csv", index=False, float_format="%.4g"
        )


if __name__ == "__main__":
    main()
