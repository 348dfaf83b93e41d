"""Queues of asynchronous reinforcement learning, in time only: results/rollout-queues.*.csv.

    python experiments/rollout-queues/queues.py      (20 minutes of two cores)
    python experiments/labbook.py

README.md says what is compared; it was written before the first run. Rows that are there are not
run again.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import yaml
from gates import TRAINED
from scipy import integrate, optimize, stats
from trials import Trial, run_all

import raysync
from raysync.core.decisions import Note
from raysync.core.journal import Entry

HERE = Path(__file__).parent
COMMON: dict[str, Any] = yaml.safe_load((HERE / "rollout-queues.yaml").read_text(encoding="utf-8"))
SEEDS = COMMON.pop("seeds")
GROUP = 8
STEPS, WARM = 120, 30
"""Steps of the trainer, and those at the beginning that do not count."""


@dataclass(frozen=True)
class Row:
    """A row of the law's table."""

    slots: int
    batch: int
    """Samples."""
    capacity: float
    """Batches."""
    ratio: float
    """Rollout rate / train rate."""
    tail: float
    """E[longest of a group] / E[length]."""
    law: float
    """As published."""
    published: float
    """As measured there."""


LAW = (
    Row(120, 240, 2, 0.63, 1.42, law=1.34, published=1.26),
    Row(240, 120, 2, 0.92, 1.43, law=3.86, published=3.59),
    Row(128, 128, 2, 1.07, 1.44, law=3.29, published=3.09),
    Row(240, 120, 1, 0.86, 1.42, law=3.34, published=3.40),
    Row(120, 120, 1, 0.67, 1.42, law=1.95, published=1.92),
    Row(128, 128, 1, 1.14, 1.45, law=2.24, published=2.01),
)
SLOTS = BATCH = 128
RATIOS, TAILS, BOUNDS = (0.9, 1.1), (1.44, 4.4), (1, 2, 4, 8)
BOUNDED = ("evict", "count", "in-order")


def formula(row: Row) -> float:
    """Return the staleness that the law gives, by its formula."""
    before = row.slots * row.tail / row.batch
    if row.ratio < 1:
        return before + row.ratio
    return before / row.ratio + (2 * row.capacity + row.ratio - 1) / (2 * row.ratio)


@cache
def sigma_of(tail: float) -> float:
    """Return the sigma of a lognormal whose groups have that tail."""

    def excess(sigma: float) -> float:
        def weighted(z: float) -> float:
            longest = GROUP * stats.norm.cdf(z) ** (GROUP - 1) * stats.norm.pdf(z)
            return float(longest * np.exp(sigma * z - sigma**2 / 2))

        return float(integrate.quad(weighted, -8, 10)[0]) - tail

    return float(optimize.brentq(excess, 0.01, 2))


def simulate(trial: Trial) -> Trial:
    """Simulate; return what came out after the warm-up."""
    jitter = {"distribution": "lognormal", "sigma": sigma_of(trial["tail"])}
    settings = COMMON | {
        "seed": trial["seed"],
        "workers": [COMMON["workers"][0] | {"count": trial["slots"], "jitter": jitter}],
        "workload": {"samples": STEPS * trial["batch"]},
        "paradigm": {
            "name": "gates:RolloutQueue",
            "gate": trial["gate"],
            "group": GROUP,
            "batch": trial["batch"] // GROUP,
            "update_s": trial["ratio"] * trial["batch"] / trial["slots"],
            "capacity": trial["capacity"],
            "bound": trial["bound"],
        },
    }
    with tempfile.TemporaryDirectory() as output:
        record = raysync.run(settings | {"output": output})
        assert record.summary["status"] == "finished", record.summary["error"]
        notes = [
            (entry.event.at, decision.values)
            for entry in record.journal()
            if isinstance(entry, Entry)
            for decision in entry.decisions
            if isinstance(decision, Note) and decision.kind == TRAINED
        ]
        pushes = record.pushes
    begin = notes[WARM][0]
    notes, pushes = notes[WARM:], pushes[pushes.pushed_at_s >= begin]
    ages = [age for _, values in notes for age in values["staleness"]]
    before = [age for _, values in notes for age in values["before"]]
    decided = pushes[pushes.outcome != "buffered"]
    applied = decided[decided.outcome == "applied"]
    rate = trial["batch"] * (len(notes) - 1) / (notes[-1][0] - begin)
    return {
        "staleness": round(fmean(ages), 4),
        "before_queue": round(fmean(before), 4),
        "largest": max(ages),
        "samples_per_s": round(rate, 4),
        "dropped": round(1 - len(applied) / len(decided), 4),
        "length": round(float(applied.busy_s.mean() / pushes.busy_s.mean()), 4),
    }


def law() -> Iterator[Trial]:
    """Yield the rows of the law."""
    for row in LAW:
        for seed in SEEDS:
            yield {
                "gate": "drop-oldest", "bound": 0, "slots": row.slots, "batch": row.batch,
                "capacity": float(row.capacity), "ratio": row.ratio, "tail": row.tail, "seed": seed,
            }  # fmt: skip


def gates() -> Iterator[Trial]:
    """Yield every gate at every bound."""
    kinds = [("none", 0), ("drop-oldest", 0)]
    kinds += [(gate, bound) for gate in BOUNDED for bound in BOUNDS]
    for tail in TAILS:
        for ratio in RATIOS:
            for gate, bound in kinds:
                for seed in SEEDS:
                    yield {
                        "gate": gate, "bound": bound, "slots": SLOTS, "batch": BATCH,
                        "capacity": 1.0, "ratio": ratio, "tail": tail, "seed": seed,
                    }  # fmt: skip


def main() -> None:
    """Simulate the law's rows, then the gates."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    results = HERE / "results"
    run_all(simulate, law(), results / "rollout-queues.law.csv")
    run_all(simulate, gates(), results / "rollout-queues.gates.csv")


if __name__ == "__main__":
    main()
