"""One simulated run: its measures, and what happened when.

The same driver, machine and paradigm as in a run; no record is written.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysync.config import ParadigmChoice
from raysync.core.decisions import Apply, Release, Switch
from raysync.core.ids import WorkerId
from raysync.core.journal import Entry, Line
from raysync.engine.topology import rosters_by_stage
from raysync.record.measures import Measures
from raysync.record.push_rows import PushRow
from raysync.training.preparation import TrainingPlan
from raysync.virtual.engine import driver_of

BLOCKS = 30  # the blocks of time that a run is cut into, at most
STEPS_A_BLOCK = 10  # the pushes of a worker in a block, at least, on average
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Blocks:
    """Sums over blocks of time, each an array of shape (blocks,)."""

    phase: NDArray[np.int64]  # the number of switches before the block
    seconds: Floats
    samples: Floats
    wait_s: Floats  # the waits, all workers together, of pushes that arrived in it
    lost_s: Floats  # the waits, and the computing of pushes that were dropped
    applied: Floats  # the pushes that were applied
    staleness: Floats  # their staleness, summed up


@dataclass(frozen=True)
class Simulation:
    summary: dict[str, Any]  # the measures, under the keys of `summary.json`
    shares: dict[str, int]  # slot -> the samples of its last iteration
    lead_mean: float  # the mean lead at a release, in clocks
    lost_s: float  # the workers' seconds of waiting, and of computing pushes that were dropped
    waiting: dict[str, float]  # slot -> the share of its time that it waits
    blocks: Blocks | None

    @property
    def applied(self) -> Counter[str]:
        """Slot -> its pushes that were not dropped."""
        counts: Counter[str] = Counter()
        for life in self.summary["per_worker"]:
            counts[str(WorkerId(life["id"]).slot)] += life["pushes"] - life["dropped"]
        return counts


def simulate(training: TrainingPlan, choice: ParadigmChoice) -> Simulation:
    """Run a paradigm, for workers that have the whole model, to the end of the workload."""
    experiment = training.experiment
    measures = Measures(
        training.workload_samples,
        experiment.aim(training.primary),
        training.primary,
        training.chance_accuracy,
    )
    log = _Log(experiment.batch_sizes)
    driver = driver_of(training, training.make(choice))
    measures.share(rosters_by_stage(driver.topology))
    for lines in driver.run():
        for line in lines:
            log.add_line(line)
        for row in measures.feed(lines):
            log.add_row(row)
    return Simulation(
        summary=measures.summary(),
        shares=log.shares,
        lead_mean=float(np.mean(log.leads)) if log.leads else 0.0,
        lost_s=sum(log.lost_s),
        waiting={
            str(WorkerId(name).slot): share for name, share in measures.wait_fractions().items()
        },
        blocks=log.blocks(
            training.push_samples(choice) * experiment.worker_count, measures.started_at or 0.0
        ),
    )


def _doubles() -> array[float]:
    return array("d")


@dataclass
class _Log:
    """What happened when, as parallel arrays."""

    shares: dict[str, int]
    # when each push arrived; the next three arrays are of these pushes, too
    pushed_at: array[float] = field(default_factory=_doubles)
    leads: array[float] = field(default_factory=_doubles)
    wait_s: array[float] = field(default_factory=_doubles)
    # the wait of a push and, if it was dropped, its computing
    lost_s: array[float] = field(default_factory=_doubles)
    # when each push was applied; the next two arrays are of applied pushes, too
    applied_at: array[float] = field(default_factory=_doubles)
    samples: array[float] = field(default_factory=_doubles)
    staleness: array[float] = field(default_factory=_doubles)
    # when each update was made; the next array is of updates, too
    updated_at: array[float] = field(default_factory=_doubles)
    samples_before: array[float] = field(default_factory=_doubles)
    switched_at: array[float] = field(default_factory=_doubles)

    def add_line(self, line: Line) -> None:
        if isinstance(line, Entry):
            for decision in line.decisions:
                if isinstance(decision, Apply):
                    self.updated_at.append(line.event.at)
                    self.samples_before.append(decision.samples_before)
                elif isinstance(decision, Switch):
                    self.switched_at.append(line.event.at)
                elif isinstance(decision, Release) and decision.batch_size is not None:
                    self.shares[str(WorkerId(decision.worker).slot)] = decision.batch_size

    def add_row(self, row: PushRow) -> None:
        self.pushed_at.append(row.pushed_at_s)
        self.leads.append(row.lead)
        self.wait_s.append(row.wait_s)
        self.lost_s.append(row.wait_s + (row.busy_s if row.outcome == "dropped" else 0.0))
        if row.applied_at_s is not None and row.staleness is not None:
            self.applied_at.append(row.applied_at_s)
            self.samples.append(row.samples)
            self.staleness.append(row.staleness)

    def blocks(self, samples_each: float, started_at: float) -> Blocks | None:
        """Cut the run into blocks of about equally many samples, at updates and at switches.

        Args:
            samples_each: of one push of every worker.
            started_at: the first release, in seconds since the run began.
        """
        samples, updates = sum(self.samples), len(self.updated_at)
        count = min(BLOCKS, int(samples) // (STEPS_A_BLOCK * samples_each))
        if count < 2:
            return None
        marks = np.searchsorted(self.samples_before, np.arange(1, count) * samples / count)
        cuts = {self.updated_at[min(int(mark), updates) - 1] for mark in marks}
        inner = (cuts | set(self.switched_at)) - {started_at, self.updated_at[-1]}
        return self._blocks_between(np.array([started_at, *sorted(inner), self.updated_at[-1]]))

    def _blocks_between(self, edges: Floats) -> Blocks:
        """Sum up the blocks from an edge to the next; what happens at an edge ends a block."""
        last = len(edges) - 2

        def summed(times: array[float], values: Any = None) -> Floats:
            number = np.clip(np.searchsorted(edges, times) - 1, 0, last)
            return np.bincount(number, weights=values, minlength=last + 1).astype(float)

        return Blocks(
            phase=np.searchsorted(self.switched_at, edges[:-1], side="right"),
            seconds=np.diff(edges),
            samples=summed(self.applied_at, self.samples),
            wait_s=summed(self.pushed_at, self.wait_s),
            lost_s=summed(self.pushed_at, self.lost_s),
            applied=summed(self.applied_at),
            staleness=summed(self.applied_at, self.staleness),
        )
