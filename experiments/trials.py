"""Trials of an experiment, a row each, on all cores: a program that was stopped goes on with those
that have no row yet.

A trial is what identifies a run (`{"arm": "bsp", "lr": 0.1, "seed": 3}`), its row what was
measured. `tuned` chooses the learning rate of each arm from such rows, before the runs that count.
"""

import argparse
import csv
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # of each process: there are as many as cores

import pandas as pd

import raysync

Trial = dict[str, Any]
Train = Callable[[Trial], Trial]
"""Makes the run of a trial, and returns what was measured: the same names for each trial."""
EXTENSIONS = 4
"""So often at most a grid of rates is extended beyond its edge."""
TUNING_SEED, VALIDATION_SAMPLES = 100, 5000
"""Of the runs that choose rates: their seed, and what they hold out of the training set."""
LAST = 3
"""What counts is the mean of so many evaluations at the end."""


def data_folder(doc: str) -> Path:
    """Parse `--data`, the folder of the data sets, for a program with this docstring."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"), help="where the data sets are")
    folder: Path = parser.parse_args().data
    return folder.resolve()


def trained(settings: Trial) -> raysync.RunRecord:
    """Train in virtual time without a record on disk; with the tuning seed, on held-out samples.

    A run that diverges counts, as one without a result.
    """
    if settings["seed"] == TUNING_SEED:
        held_out = {"validation_samples": VALIDATION_SAMPLES}
        settings = settings | {"data": held_out | settings["data"]}
    with tempfile.TemporaryDirectory() as output:
        record = raysync.run(settings | {"output": output})
        assert record.summary["status"] in ("finished", "diverged"), record.summary
        assert record.config
        len(record.evaluations), len(record.pushes)  # all is read while the folder is there
    return record


def at_the_end(record: raysync.RunRecord) -> Trial:
    """Return the mean loss and accuracy of the last evaluations; of a diverged run, the worst."""
    evaluations = record.evaluations
    if record.config.seed == TUNING_SEED:
        evaluations = evaluations[evaluations.progress < 1]  # the one at the end is a test
    if record.summary["status"] == "diverged":
        return {"loss": float("inf"), "accuracy": 0.0}
    last = evaluations.tail(LAST)
    return {name: round(float(last[name].mean()), 6) for name in ("loss", "accuracy")}


def run_all(train: Train, trials: Iterable[Trial], table: Path) -> pd.DataFrame:
    """Run the trials that have no row in a table yet; return their rows and the earlier ones.

    `train` runs in a process of its own, so it is a function at the top of a file.
    """
    wanted = list(trials)
    names = list(wanted[0])
    rows = pd.read_csv(table) if table.is_file() else pd.DataFrame(columns=names)
    there = set(rows[names].itertuples(index=False, name=None))
    left = [trial for trial in wanted if tuple(trial.values()) not in there]
    if left:
        _append(train, left, table)
        pd.read_csv(table).sort_values(names).to_csv(table, index=False, lineterminator="\n")
    return pd.read_csv(table)


def _append(train: Train, trials: Sequence[Trial], table: Path) -> None:
    table.parent.mkdir(exist_ok=True)
    processes = ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn"))
    with processes as pool, table.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        futures = {pool.submit(train, trial): trial for trial in trials}
        for future in as_completed(futures):
            row = futures[future] | future.result()
            if file.tell() == 0:
                writer.writerow(row)
            writer.writerow(row.values())
            file.flush()


def tuned(
    train: Train, arms: Iterable[Trial], rates: Callable[[Trial], Sequence[float]], table: Path
) -> list[Trial]:
    """Choose the rate with the least `loss` for each arm; return the arms with their `lr`.

    Where the best is at an edge of the grid, the next rate beyond it is tried, too.

    Args:
        rates: arm -> its grid: at least two rates, each by the same factor above the one before.
    """
    grids = [(arm, sorted(rates(arm))) for arm in arms]
    for _ in range(EXTENSIONS + 1):
        rows = run_all(train, [arm | {"lr": lr} for arm, grid in grids for lr in grid], table)
        extended = [(arm, grid, _beyond(grid, _best(rows, arm, grid))) for arm, grid in grids]
        if all(rate is None for _, _, rate in extended):
            break
        grids = [(arm, sorted([*grid, *([rate] if rate else [])])) for arm, grid, rate in extended]
    return [arm | {"lr": _best(rows, arm, grid)} for arm, grid in grids]


def _best(rows: pd.DataFrame, arm: Trial, grid: Sequence[float]) -> float:
    of_arm = rows[rows.lr.isin(grid)]
    for name, value in arm.items():
        of_arm = of_arm[of_arm[name] == value]
    return float(of_arm.lr[of_arm.loss.idxmin()])


def _beyond(grid: Sequence[float], best: float) -> float | None:
    """Return the next rate where the best is at an edge of a grid; None: it is not."""
    factor = grid[1] / grid[0]
    if best == grid[-1]:
        return float(f"{best * factor:.4g}")
    return float(f"{best / factor:.4g}") if best == grid[0] else None
