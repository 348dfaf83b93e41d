"""Measure goodput on the virtual clock: results/goodput.csv, and goodput.png.

    python experiments/goodput/goodput.py         measures, and draws (half an hour)
    python experiments/goodput/goodput.py --draw  only draws

Each paradigm of goodput.yaml runs with each number of workers and each mean time between the
failures of a worker, with restarts and without, for so many seconds. Goodput is the samples applied
in them, by second and worker.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from labtables import Results  # noqa: E402
from pictures import draw_goodput  # noqa: E402

from raysync import config  # noqa: E402
from raysync.config import Experiment, ParadigmChoice  # noqa: E402
from raysync.core.decisions import Apply  # noqa: E402
from raysync.core.events import Left  # noqa: E402
from raysync.core.journal import Ended, Entry  # noqa: E402
from raysync.training.preparation import prepare  # noqa: E402
from raysync.virtual.engine import VirtualEngine  # noqa: E402

SEEDS = {8: 10, 32: 10, 128: 5, 1000: 3}
"""Workers -> the number of seeds: many workers scatter less, and take longer."""
MEAN_GAPS_S = (100, 300, 1000, 3000, 10_000)
SLACK = 8
"""K-sync waits for all but an eighth of the workers, and so do backup workers."""


@dataclass(frozen=True)
class Setting:
    """One run."""

    paradigm: str
    """The paradigm's name."""
    workers: int
    mean_gap_s: float
    """The mean time between the failures of a worker; infinity: there are none."""
    restarts: bool
    seed: int


def settings(names: list[str]) -> Iterator[Setting]:
    """Yield all runs, the longest first."""
    for workers in sorted(SEEDS, reverse=True):
        for seed in range(SEEDS[workers]):
            for name in names:
                yield Setting(name, workers, inf, True, seed)
                for mean_gap_s in MEAN_GAPS_S:
                    for restarts in (True, False):
                        yield Setting(name, workers, mean_gap_s, restarts, seed)


def choice_of(name: str, workers: int, described: Experiment) -> ParadigmChoice:
    """Return a paradigm of the file, where its parameter depends on the number of workers with the
    one that goes with it.
    """
    slack = {
        "k-sync": {"k": workers - workers // SLACK},
        "backup-workers": {"backups": workers // SLACK},
    }
    if name in slack:
        return ParadigmChoice(name=name, **slack[name])
    return next(choice for choice in described.paradigms if choice.name == name)


def measured(setting: Setting) -> dict[str, object]:
    """Return the row of a run."""
    faults = (
        "[]" if setting.mean_gap_s == inf else f"[{{kind: kill, mean_gap_s: {setting.mean_gap_s}}}]"
    )
    experiment = config.load(
        HERE / "goodput.yaml",
        [
            f"workers.0.count={setting.workers}",
            f"faults={faults}",
            f"seed={setting.seed}",
            *([] if setting.restarts else ["cluster.restarts.attempts=0"]),
        ],
    )
    choice = choice_of(setting.paradigm, setting.workers, experiment)
    samples = losses = 0
    for lines in VirtualEngine().run(prepare(experiment), choice.make()):
        for line in lines:
            if isinstance(line, Entry):
                losses += isinstance(line.event, Left)
                samples += sum(
                    len(each.pushes) for each in line.decisions if isinstance(each, Apply)
                )
            elif isinstance(line, Ended):
                status = line.status
    assert experiment.stop is not None, "a run without an end"
    assert experiment.stop.after_s is not None, "a run without an end"
    return {
        "paradigm": setting.paradigm,
        "workers": setting.workers,
        "mean_gap_s": setting.mean_gap_s,
        "restarts": setting.restarts,
        "seed": setting.seed,
        "ended": status,
        "losses": losses,
        "goodput": round(samples / experiment.stop.after_s / setting.workers, 6),
    }


def measure() -> pd.DataFrame:
    """Return the rows of all runs."""
    names = [choice.name for choice in config.load(HERE / "goodput.yaml").paradigms]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = pd.DataFrame(pool.map(measured, settings(names)))
    return rows.sort_values(["paradigm", "workers", "mean_gap_s", "restarts", "seed"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="only draw")
    if not parser.parse_args().draw:
        measure().to_csv(HERE / "results" / "goodput.csv", index=False)
    draw_goodput(Results(HERE).of_runs("goodput"), HERE / "goodput.png")
