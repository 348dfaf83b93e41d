"""What is simulated: an experiment under one paradigm, in time only, and variations of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from raysync.config import Experiment, Jitter, ParadigmChoice, WorkerGroup
from raysync.config.faults import Crash, Fault
from raysync.core.ids import Slot
from raysync.core.journal import Ended
from raysync.core.paradigm import Paradigm
from raysync.engine.step_time import StepTime
from raysync.training.preparation import TrainingPlan
from raysync.virtual.engine import driver_of

PUSHES = 1_000
"""A longer run is simulated for about so many pushes, since its pace does not change."""
ITERATIONS = 12
"""The iterations of each worker that are simulated at least, so that the pace has settled."""
MOST_PUSHES = 12_000
"""More pushes than this are not simulated: the answer shall come within a second or two."""


@dataclass(frozen=True)
class Setting:
    """An experiment under one paradigm; nothing is trained."""

    training: TrainingPlan
    choice: ParadigmChoice

    @classmethod
    def of(cls, training: TrainingPlan, choice: ParadigmChoice) -> Setting | None:
        """Return the part of a run that shows its pace; None: its time cannot be simulated that
        fast, or, of a network in stages, at all.
        """
        experiment = training.experiment
        if not isinstance(experiment.make(choice), Paradigm):
            return None
        size = fmean(experiment.batch_sizes.values())
        pushes = training.workload_samples / size
        shown = max(PUSHES, ITERATIONS * experiment.worker_count)
        if experiment.faults:  # they have their times, so the whole run is simulated
            shown = max(shown, MOST_PUSHES)
        if min(pushes, shown) > MOST_PUSHES or (experiment.faults and pushes > shown):
            return None
        samples = min(training.workload_samples, round(shown * size))
        plain = {"timing": "only", "checkpoint": None, "stop": None, "target": None}
        timed = replace(
            training,
            experiment=experiment.model_copy(update=plain | {"engine": "virtual"}),
            shards={},
            workload_samples=samples,
        )
        return cls(timed, choice)

    @property
    def experiment(self) -> Experiment:
        """The experiment."""
        return self.training.experiment

    @property
    def groups(self) -> Mapping[str, WorkerGroup]:
        """Worker slot -> its group, which says how long its steps last."""
        return self.training.groups

    @property
    def has_server(self) -> bool:
        """Whether gradients go through a server."""
        paradigm = self.experiment.make(self.choice)
        return isinstance(paradigm, Paradigm) and not paradigm.collective

    def step_s(self, slot: str) -> float:
        """Return the mean seconds of a worker's steps, without faults."""
        size, steady = self.experiment.batch_sizes[slot], Jitter(distribution="none")
        group = self.groups[slot].model_copy(update={"jitter": steady})
        steps = StepTime(group, self.experiment.seed, slot, size)
        return fmean(steps.seconds(clock, size) for clock in range(len(group.trace) or 1))

    def change(self, **settings: Any) -> Setting:
        """Return it with other settings of the experiment, which hold together."""
        experiment = self.experiment.model_copy(update=settings)
        return replace(self, training=replace(self.training, experiment=experiment))

    def change_network(self, **settings: Any) -> Setting:
        """Return it with other settings of `network`."""
        return self.change(network=self.experiment.network.model_copy(update=settings))

    def change_cluster(self, **settings: Any) -> Setting:
        """Return it with other settings of `cluster`."""
        return self.change(cluster=self.experiment.cluster.model_copy(update=settings))

    def change_groups(self, groups: Mapping[str, WorkerGroup]) -> Setting:
        """Return it with other devices and links of the workers in these slots."""
        return replace(
            self, training=replace(self.training, groups={**self.training.groups, **groups})
        )

    def without(self, slots: Collection[str]) -> Setting | None:
        """Return it without the workers in these slots, the others doing all the work; None: it
        would not be the same experiment any more, since its groups cannot be told apart without
        them, or the paradigm needs them.
        """
        left = {slot: group for slot, group in self.groups.items() if slot not in slots}
        counts = {group.name: 0 for group in self.experiment.workers}
        for slot in left:
            counts[Slot(slot).group] += 1
        workers = tuple(
            group.model_copy(update={"count": counts[group.name]})
            for group in self.experiment.workers
            if counts[group.name]
        )
        smaller = self.change(workers=workers)
        if list(smaller.experiment.slots()) != list(left):  # it would number others anew
            return None
        if not left or self.experiment.make(self.choice).infeasible_reason(len(left)):
            return None
        if smaller.experiment.cluster.min_workers > len(left):
            return None
        smaller = smaller.change(faults=tuple(_of_others(self.experiment.faults, left, counts)))
        return replace(smaller, training=replace(smaller.training, groups=left))

    def seconds(self) -> float | None:
        """Simulate it; return the seconds of its work, or None if it does not finish."""
        *_, last = driver_of(self.training, self.experiment.make(self.choice)).run()
        [*_, ended] = last
        assert isinstance(ended, Ended), "a run without an end"
        return ended.at if ended.status == "finished" else None


def _of_others(
    faults: Iterable[Fault], left: Collection[str], counts: Mapping[str, int]
) -> Iterator[Fault]:
    """Yield the faults of the workers that are left."""
    for fault in faults:
        if isinstance(fault, Crash):
            if fault.worker in left:
                yield fault
        elif not fault.workers:
            yield fault
        elif still := tuple(each for each in fault.workers if each in left or counts.get(each)):
            yield fault.model_copy(update={"workers": still})
