"""What is simulated: an experiment under one paradigm, in time only, and variations of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from statistics import fmean
from typing import Any

from raysync.config import Experiment, Jitter, ParadigmChoice, WorkerGroup
from raysync.config.durations import steps_of
from raysync.config.faults import WindowedFault
from raysync.core.ids import Slot
from raysync.core.journal import Ended
from raysync.core.paradigm import Paradigm
from raysync.emulation.step_time import StepTime
from raysync.training.preparation import TrainingPlan
from raysync.virtual.engine import driver_of

# the pushes of a worker that show a pace with an interval, and without one
ROUNDS, FEWEST_ROUNDS = 60, 12
# the pushes of all workers that show a pace at least, and with an interval at most
PACED_PUSHES, MOST_PACED = 1_000, 20_000


@dataclass(frozen=True)
class Setting:
    training: TrainingPlan
    choice: ParadigmChoice
    trained: bool = False  # whether the run itself, which is only simulated here, has gradients

    @classmethod
    def of(cls, training: TrainingPlan, choice: ParadigmChoice) -> Setting | None:
        """Return the setting of a run; None: a network in stages has no such bottlenecks."""
        experiment = training.experiment
        if not isinstance(training.make(choice), Paradigm):
            return None
        plain = {"timing": "only", "checkpoint": None, "stop": None, "target": None}
        timed = experiment.model_copy(update=plain | {"engine": "virtual"})
        return cls(replace(training, experiment=timed, shards={}), choice, experiment.trains)

    @property
    def samples(self) -> int:
        return self.training.workload_samples

    @property
    def pushes(self) -> int:
        return self.pushes_of(self.samples)

    def pushes_of(self, samples: int) -> int:
        return ceil(samples / self.training.push_samples(self.choice))

    def sized(self, pushes: int) -> Setting:
        """Return it with the work of so many pushes."""
        samples = round(pushes * self.training.push_samples(self.choice))
        return replace(self, training=replace(self.training, workload_samples=samples))

    def shortened(self, pushes: int) -> Setting:
        """Return it with the work of so many pushes, if it has more."""
        return self.part(self.sized(pushes).samples)

    def part(self, samples: int) -> Setting:
        """Return it with the work of so many samples, if it has more."""
        part = replace(self, training=replace(self.training, workload_samples=samples))
        return part if samples < self.samples else self

    def paced(self) -> Setting:
        """Return it with as much work as shows its pace, if it has more.

        Faults have their times, and so the whole work; local steps have `with_rounds`.
        """
        workers = self.experiment.worker_count
        most = max(PACED_PUSHES, min(ROUNDS * workers, MOST_PACED), FEWEST_ROUNDS * workers)
        return (self.shortened(most) if self.is_steady else self).with_rounds()

    def with_rounds(self) -> Setting:
        """Return it with at least `ROUNDS` pushes a worker where each has several local steps."""
        fewest = ROUNDS * self.experiment.worker_count
        has_steps = self.training.push_samples(self.choice) > fmean(
            self.experiment.batch_sizes.values()
        )
        return self.sized(fewest) if has_steps and self.pushes < fewest else self

    @property
    def experiment(self) -> Experiment:
        return self.training.experiment

    @property
    def groups(self) -> Mapping[str, WorkerGroup]:
        return self.training.groups

    @property
    def has_server(self) -> bool:
        """Whether gradients go through a server."""
        paradigm = self.training.make(self.choice)
        return isinstance(paradigm, Paradigm) and not paradigm.collective

    @cached_property
    def steps_s(self) -> Mapping[str, float]:
        """Worker slot -> the mean seconds of its steps, without faults."""
        sizes, steady = self.experiment.batch_sizes, Jitter(distribution="none")
        means = {}
        for slot, group in self.groups.items():
            device = group.model_copy(update={"jitter": steady})
            steps = StepTime(device, self.experiment.seed, slot, sizes[slot])
            trace, _ = steps_of(group.trace, Slot(slot).number, group.count)
            means[slot] = fmean(
                steps.seconds(clock, sizes[slot]) for clock in range(len(trace) or 1)
            )
        return means

    @property
    def computed_per_s(self) -> float:
        """The samples per second of workers that never wait for anything."""
        sizes = self.experiment.batch_sizes
        return sum(sizes[slot] / step_s for slot, step_s in self.steps_s.items() if step_s)

    @property
    def is_steady(self) -> bool:
        """Whether each part of the work takes as long as any other: no fault comes and goes, and no
        trace of step times is long.
        """
        traces = (
            steps_of(group.trace, Slot(slot).number, group.count)[0]
            for slot, group in self.groups.items()
        )
        return all(len(trace or ()) <= FEWEST_ROUNDS for trace in traces) and all(
            isinstance(fault, WindowedFault)
            and not fault.varies
            and (fault.start, fault.lasts_s, fault.clocks) == (0, None, None)
            for fault in self.experiment.faults
        )

    def change(self, **settings: Any) -> Setting:
        """Return it with other settings of the experiment, which are not validated."""
        experiment = self.experiment.model_copy(update=settings)
        return replace(self, training=replace(self.training, experiment=experiment))

    def change_network(self, **settings: Any) -> Setting:
        return self.change(network=self.experiment.network.model_copy(update=settings))

    def change_cluster(self, **settings: Any) -> Setting:
        return self.change(cluster=self.experiment.cluster.model_copy(update=settings))

    def change_groups(
        self, slots: Iterable[str], change: Callable[[str, WorkerGroup], Mapping[str, Any]]
    ) -> Setting:
        """Return it with other devices and links of some workers.

        Args:
            slots: of these workers.
            change: from a slot and its group to what differs.
        """
        own = {
            slot: self.groups[slot].model_copy(update=change(slot, self.groups[slot]))
            for slot in slots
        }
        return replace(self, training=replace(self.training, groups={**self.groups, **own}))

    def seconds(self) -> float | None:
        """Simulate it; return the seconds of its work, or None if it does not finish."""
        *_, last = driver_of(self.training, self.training.make(self.choice)).run()
        [*_, ended] = last
        assert isinstance(ended, Ended), "a run without an end"
        return ended.at if ended.status == "finished" else None
