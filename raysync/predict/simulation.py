"""One paradigm on given step times, on the virtual clock, in timing mode: what the workers did.

The same driver, machine and paradigm as in a run; nothing is trained, and no record is written.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raysync import config
from raysync.config import Experiment, ParadigmChoice
from raysync.config.durations import Steps, middle
from raysync.core.decisions import Apply, Switch
from raysync.core.ids import WorkerId
from raysync.core.journal import Entry, Line
from raysync.core.paradigm import Paradigm
from raysync.emulation.fault_plan import FaultPlan
from raysync.engine.driver import Driver
from raysync.engine.topology import SERVER, DataParallelPlan, rosters_by_stage
from raysync.errors import ConfigError
from raysync.record.measures import Measures
from raysync.record.push_rows import PushRow
from raysync.virtual.actors import ServerActor, ServerTimes, WorkerActor
from raysync.virtual.transfers import PhaseNetwork
from raysync.virtual.virtual_backend import Actor, VirtualBackend

BLOCKS = 30
"""The blocks of time that a run is cut into, at most."""
STEPS_A_BLOCK = 10
"""The steps of a rank in a block, at least, on average."""
OF_A_GROUP = re.compile(r"([A-Za-z0-9_.+-]+)-(\d+)")
Floats = NDArray[np.float64]


def experiment_of(steps: Steps, *, batch_size: int, steps_each: int) -> Experiment:
    """Return the experiment whose workers take those steps; see `ranks_of` for their names.

    Args:
        steps: rank -> the seconds of its steps.
        batch_size: samples of a step.
        steps_each: the workload, in steps a rank on average.
    """
    names = _groups(list(steps)) or {"rank": list(steps)}
    return config.validate(
        {
            "name": "whatif",
            "engine": "virtual",
            "timing": "only",
            "batch_size": batch_size,
            "workload": {"iterations_per_worker": steps_each},
            "workers": [
                {"name": group, "count": len(ranks), "trace": [steps[rank] for rank in ranks]}
                for group, ranks in names.items()
            ],
        }
    )


def ranks_of(experiment: Experiment, steps: Steps) -> dict[str, str]:
    """Return slot -> the name of its rank in the source of the step times."""
    return dict(zip(experiment.slots(), steps, strict=True))


def with_another(steps: Steps) -> Iterator[tuple[str, Steps]]:
    """Yield the name of each group of ranks ("" if they are called otherwise), and the step times
    with one more rank in it, which takes the steps of the group's rank in the middle.
    """
    for group, ranks in (_groups(list(steps)) or {"": list(steps)}).items():
        extra = f"{group}-{len(ranks)}" if group else " and ".join([*ranks, "one more"])
        grown: dict[str, tuple[float, ...]] = {}
        for rank, seconds in steps.items():
            grown[rank] = seconds
            if rank == ranks[-1]:
                grown[extra] = middle([steps[each] for each in ranks])
        yield group, grown


def _groups(ranks: list[str]) -> dict[str, list[str]]:
    """Return the groups of ranks that are called like workers (gpu-0, gpu-1, ...); nothing if they
    are not.
    """
    groups: dict[str, list[str]] = {}
    for rank in ranks:
        match = OF_A_GROUP.fullmatch(rank)
        if match is None:
            return {}
        group = groups.setdefault(match[1], [])
        if rank != f"{match[1]}-{len(group)}":
            return {}
        group.append(rank)
    in_order = [rank for group in groups.values() for rank in group]
    return groups if in_order == ranks else {}


@dataclass(frozen=True)
class Blocks:
    """Sums over blocks of time, each an array of shape (blocks,)."""

    phase: NDArray[np.int64]
    """The number of switches before the block."""
    seconds: Floats
    samples: Floats
    wait_s: Floats
    """The waits, all workers together, of pushes that arrived in it."""
    lost_s: Floats
    """The waits, and the computing of pushes that were dropped."""
    applied: Floats
    """The pushes that were applied."""
    staleness: Floats
    """Their staleness, summed up."""


@dataclass(frozen=True)
class Simulation:
    """What one paradigm makes of the step times."""

    choice: ParadigmChoice
    summary: dict[str, Any]
    """The measures, under the keys of `summary.json`."""
    lead_mean: float
    """The mean lead at a release, in clocks."""
    lost_s: float
    """The workers' seconds of waiting, and of computing pushes that were dropped."""
    waiting: dict[str, float]
    """Slot -> the share of its time that it waits."""
    blocks: Blocks | None
    """The sums over blocks of time; None: the run is too short to be cut."""


def paradigm_of(choice: ParadigmChoice, workers: int) -> Paradigm:
    """Return a fresh paradigm.

    Raises:
        ConfigError: it does not work with that many workers, or is no rule for workers that have
            the whole model.
    """
    paradigm = choice.make()
    if not isinstance(paradigm, Paradigm):
        raise ConfigError(
            f"--paradigm {choice.label}: it cuts the model into stages, whose times are not known."
        )
    if why := paradigm.infeasible_reason(workers):
        raise ConfigError(f"--paradigm {choice.label}: {why}.")
    return paradigm


def simulate(experiment: Experiment, choice: ParadigmChoice) -> Simulation:
    """Run a paradigm to the end of the workload.

    Raises:
        ConfigError: see `paradigm_of`; or it broke, as one of the user's own may.
    """
    paradigm = paradigm_of(choice, experiment.worker_count)
    workload = experiment.workload_samples(0)
    measures, log = Measures(workload), _Log()
    driver = _driver_of(experiment, paradigm, workload)
    measures.share(rosters_by_stage(driver.topology))
    for line in chain.from_iterable(driver.run()):
        log.see(line)
        for row in measures.take((line,)):
            log.add(row)
    ended = measures.ended
    assert ended is not None, "a run without an end"
    if ended.status != "finished":
        raise ConfigError(f"--paradigm {choice.label}: the run failed: {ended.error}.")
    return Simulation(
        choice=choice,
        summary=measures.summary(),
        lead_mean=float(np.mean(log.leads)),
        lost_s=sum(log.lost_s),
        waiting={
            str(WorkerId(name).slot): share for name, share in measures.wait_fractions().items()
        },
        blocks=log.blocks(
            experiment.worker_count * experiment.batch_size, measures.started_at or 0.0
        ),
    )


def _driver_of(experiment: Experiment, paradigm: Paradigm, workload: int) -> Driver:
    """Return the driver of a run. No network is known, so nothing takes time but the steps."""
    slots, faults = experiment.slots(), FaultPlan(experiment)

    def actor(name: str) -> Actor:
        if name == SERVER:
            return ServerActor(SERVER, ServerTimes(), 1, None)
        slot = str(WorkerId(name).slot)
        return WorkerActor(slot, slots[slot], experiment, None)

    backend = VirtualBackend(lambda phase: PhaseNetwork({}), actor, computes=False)
    plan = DataParallelPlan(paradigm, workload, slots, has_buffers=False)
    return Driver(
        topology=plan.topology(backend, experiment, faults),
        backend=backend,
        experiment=experiment,
        faults=faults,
        marks=[],
    )


def _doubles() -> array[float]:
    """Return numbers for which the garbage collector need not look."""
    return array("d")


@dataclass
class _Log:
    """What a run did when, in seconds since it began."""

    pushed_at: array[float] = field(default_factory=_doubles)
    """When each push arrived; the next three are of pushes, too."""
    leads: array[float] = field(default_factory=_doubles)
    wait_s: array[float] = field(default_factory=_doubles)
    lost_s: array[float] = field(default_factory=_doubles)
    """The wait of a push and, if it was dropped, its computing."""
    applied_at: array[float] = field(default_factory=_doubles)
    """When each push was applied; the next two are of applied pushes, too."""
    samples: array[float] = field(default_factory=_doubles)
    staleness: array[float] = field(default_factory=_doubles)
    updated_at: array[float] = field(default_factory=_doubles)
    """When each update was made; the next is of updates, too."""
    samples_before: array[float] = field(default_factory=_doubles)
    switched_at: array[float] = field(default_factory=_doubles)

    def see(self, line: Line) -> None:
        """Take in a line of the journal."""
        if isinstance(line, Entry):
            for decision in line.decisions:
                if isinstance(decision, Apply):
                    self.updated_at.append(line.event.at)
                    self.samples_before.append(decision.samples_before)
                elif isinstance(decision, Switch):
                    self.switched_at.append(line.event.at)

    def add(self, row: PushRow) -> None:
        """Take in a push."""
        self.pushed_at.append(row.pushed_at_s)
        self.leads.append(row.lead)
        self.wait_s.append(row.wait_s)
        self.lost_s.append(row.wait_s + (row.busy_s if row.outcome == "dropped" else 0.0))
        if row.applied_at_s is not None and row.staleness is not None:
            self.applied_at.append(row.applied_at_s)
            self.samples.append(row.samples)
            self.staleness.append(row.staleness)

    def blocks(self, samples_each: int, started_at: float) -> Blocks | None:
        """Cut the run into blocks of about equally many samples, at updates and at switches.

        Args:
            samples_each: of one step of every worker.
            started_at: the first release, in seconds since the run began.
        """
        samples, updates = sum(self.samples), len(self.updated_at)
        count = min(BLOCKS, int(samples) // (STEPS_A_BLOCK * samples_each))
        if count < 2:
            return None
        marks = np.searchsorted(self.samples_before, np.arange(1, count) * samples / count)
        cuts = {self.updated_at[min(int(mark), updates) - 1] for mark in marks}
        inner = (cuts | set(self.switched_at)) - {started_at, self.updated_at[-1]}
        return self._summed(np.array([started_at, *sorted(inner), self.updated_at[-1]]))

    def _summed(self, edges: Floats) -> Blocks:
        """Sum up what happened between two edges each; what happens at an edge ends a block."""
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
