"""The experiment that is simulated in the place of measured ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from statistics import fmean

from raysync import config
from raysync.config import Experiment
from raysync.config.durations import Steps
from raysync.predict.candidates import Candidate, setting_of
from raysync.predict.exchange import Exchange
from raysync.predict.setting import Setting
from raysync.training.preparation import TrainingPlan, prepare

ASSUMED_BATCH = 120  # the samples of a step where only steps are counted: `balanced` divides them
NO_BYTES = 4  # the size of vectors that travel in no time
OF_A_GROUP = re.compile(r"([A-Za-z0-9_.+-]+)-(\d+)")


@dataclass(frozen=True)
class MeasuredRanks:
    """Ranks with measured step times, and the work that they are given."""

    steps: Steps
    batch_size: int | None
    steps_each: int  # the work, in steps a rank on average
    exchange: Exchange | None = None  # how gradients travel; None: in no time
    # the steps whose gradients accumulate; `steps` has the seconds of so many together
    steps_per_push: int = 1

    @property
    def samples(self) -> int:
        return self.batch_size or ASSUMED_BATCH

    @cached_property
    def experiment(self) -> Experiment:
        """The experiment whose workers take those steps; see `names`."""
        names = _groups(list(self.steps)) or {"rank": list(self.steps)}
        settings = {
            "name": "whatif",
            "engine": "virtual",
            "timing": "only",
            "batch_size": self.samples * self.steps_per_push,
            "workload": {"iterations_per_worker": ceil(self.steps_each / self.steps_per_push)},
            "workers": [
                {"name": group, "count": len(ranks), "trace": [self.steps[rank] for rank in ranks]}
                for group, ranks in names.items()
            ],
        }
        slots = config.validate(settings).slots()
        network = {"vector_bytes": NO_BYTES}
        if self.exchange is not None:
            network = self.exchange.network(dict(zip(self.steps, slots, strict=True)))
            settings["cluster"] = {"server_shards": self.exchange.first_servers}
        return config.validate({**settings, "network": network})

    @cached_property
    def names(self) -> dict[str, str]:
        """Slot of a worker -> the name of its rank in the source of the step times."""
        return dict(zip(self.experiment.slots(), self.steps, strict=True))

    @property
    def whole_samples(self) -> int:
        return self._plan.workload_samples

    @cached_property
    def _plan(self) -> TrainingPlan:
        return prepare(self.experiment)

    def setting(self, candidate: Candidate) -> Setting:
        """Return what is simulated of a candidate; see `setting_of`."""
        return setting_of(self._plan, candidate).with_rounds()

    def can_run(self, candidate: Candidate) -> bool:
        return not candidate.choice.make().infeasible_reason(len(self.steps))

    @property
    def computed_per_s(self) -> float:
        """The samples per second of ranks that never wait for anything."""
        pushed = self.samples * self.steps_per_push
        return sum(pushed / fmean(seconds) for seconds in self.steps.values())

    def resized(self, count: int) -> MeasuredRanks:
        """Return so many ranks on the same work: measured ones, evenly many of each speed.

        A rank that is chosen several times begins at another one of its steps each time.
        """
        by_speed = sorted(self.steps, key=lambda rank: fmean(self.steps[rank]))
        # the middle of each of `count` equal parts
        chosen = [by_speed[(2 * i + 1) * len(by_speed) // (2 * count)] for i in range(count)]
        steps: Steps = {}
        links = {}
        for number, rank in enumerate(chosen):
            before, times = chosen[:number].count(rank), chosen.count(rank)
            seconds = self.steps[rank]
            begin = before * len(seconds) // times
            name = rank if times == 1 else f"{rank} ({before + 1})"
            steps[name] = seconds[begin:] + seconds[:begin]
            if self.exchange is not None and rank in self.exchange.of_ranks:
                links[name] = self.exchange.of_ranks[rank]
        steps_each = max(1, round(self.steps_each * len(self.steps) / count))
        exchange = self.exchange and replace(self.exchange, of_ranks=links)
        return replace(self, steps=steps, steps_each=steps_each, exchange=exchange)

    def with_batch(self, size: int) -> MeasuredRanks:
        """Return them with other batches, on the same work; the time of a step is proportional."""
        factor = size / self.samples
        steps = {
            rank: tuple(factor * step_s for step_s in seconds)
            for rank, seconds in self.steps.items()
        }
        steps_each = max(1, round(self.steps_each / factor))
        return replace(self, steps=steps, batch_size=size, steps_each=steps_each)


def _groups(ranks: list[str]) -> dict[str, list[str]]:
    """Return the groups of ranks that are called like workers (gpu-0, gpu-1, ...); nothing if they
    are not.
    """
    groups: dict[str, list[str]] = {}
    for rank in ranks:
        match = OF_A_GROUP.fullmatch(rank)
        if match is None:
            return {}
        groups.setdefault(match[1], []).append(rank)
    in_order = [f"{name}-{i}" for name, group in groups.items() for i in range(len(group))]
    return groups if in_order == ranks else {}
