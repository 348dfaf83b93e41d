"""What Ray Tune costs a sweep: a virtual trial under Tune beside the same run alone.

    python experiments/benchmarks/sweep.py            prints the table (three minutes)
    python experiments/benchmarks/sweep.py --write    and writes results/sweep.md

A trial is `raysync compare`'s network on digits, one epoch, in virtual time, with its record.
Alone, the runs follow one another in one process with one thread. Under Tune, `raysync sweep` runs
on a private cluster of all cores; the time is that from the start of the first trial to the end of
the last, without Ray's own start, which has a row of its own.
"""

import os
import sys
import time
from contextlib import chdir
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
import yaml
from report import interval, main, markdown, measured_on

from raysync.running.run import run
from raysync.tuning.sweep_run import plan, run as run_sweep

TRIALS, ROUNDS = 24, 3
SETTINGS = {
    "engine": "virtual",
    "model": "mlp",
    "data": "digits",
    "workload": {"epochs": 1},
    "evaluation": {"marks": 10},
    "workers": [
        {"name": "fast", "count": 2, "step_s": 0.025},
        {"name": "slow", "count": 2, "step_s": 0.06},
    ],
}


def alone_s() -> float:
    """Return the seconds of a run."""
    torch.set_num_threads(1)
    run({**SETTINGS, "output": "warm"})
    began = time.perf_counter()
    for seed in range(TRIALS):
        run({**SETTINGS, "seed": seed, "output": "alone"})
    return (time.perf_counter() - began) / TRIALS


def under_tune() -> tuple[float, float]:
    """Return the seconds until a trial ran, and then the seconds a trial, over all cores
    together.
    """
    Path("sweep.yaml").write_text(
        yaml.safe_dump({**SETTINGS, "sweep": {"grid": {"seed": list(range(TRIALS))}}}),
        encoding="utf-8",
    )
    began, first, last = time.perf_counter(), [], []

    def show(progress) -> None:
        now = time.perf_counter()
        if progress.running or progress.done:
            first.append(now)
        if progress.done < TRIALS:
            last.append(now)

    run_sweep(plan(Path("sweep.yaml")), notify=print, show=show)
    return first[0] - began, (last[-1] - first[0]) / TRIALS


def measure() -> str:
    """Measure, and return the table."""
    rows = []
    with TemporaryDirectory() as folder, chdir(folder):
        for _ in range(ROUNDS):
            start, each = under_tune()
            rows.append((alone_s(), start, each))
            print(rows[-1], file=sys.stderr, flush=True)
    cores = os.cpu_count() or 1
    alone, starts, each = zip(*rows, strict=True)
    added = [cores * tuned - single for single, _, tuned in rows]
    table = markdown(
        ["", "median (95 % of it)"],
        [
            ["a run alone, s", interval(alone)],
            [
                f"a trial under Tune, s of a core ({cores} at once)",
                interval([cores * seconds for seconds in each]),
            ],
            ["Tune adds to a trial, s of a core", interval(added)],
            ["trials a minute", f"{60 / median(each):.0f}"],
            ["until the first trial runs, s", interval(starts)],
        ],
    )
    return f"{table}\n\n{TRIALS} trials, {ROUNDS} rounds, one after the other. {measured_on()}"


if __name__ == "__main__":
    main(__file__, __doc__, measure)
