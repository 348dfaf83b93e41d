"""What a cluster could be in place of what it is: another server, a faster network, fewer
workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from raysync.config import Crash, Experiment, Jitter, Link, Network
from raysync.core.ids import Slot
from raysync.engine.step_time import StepTime
from raysync.training.preparation import TrainingPlan

Kind = Literal["server", "bandwidth", "without"]
SLOWER = 1.05
"""A worker is the slowest if its steps take so many times those of the next one."""


@dataclass(frozen=True)
class Change:
    """A change of the cluster."""

    kind: Kind
    what: str
    """Its name in a sentence: with what, or without whom."""
    slot: str = ""
    """The worker that is left out."""

    def applied_to(self, plan: TrainingPlan) -> TrainingPlan | None:
        """Return a training on the changed cluster; None: it cannot be had there."""
        experiment = plan.experiment
        if self.kind == "server":
            cluster = experiment.cluster
            most = experiment.worker_count if cluster.server_placement == "with-workers" else None
            if most is not None and cluster.server_shards >= most:
                return None
            more = cluster.model_copy(update={"server_shards": cluster.server_shards + 1})
            return replace(plan, experiment=experiment.model_copy(update={"cluster": more}))
        if self.kind == "bandwidth":
            return _faster(plan)
        return _without(plan, self.slot)


def changes(plan: TrainingPlan) -> Iterator[Change]:
    """Yield the changes that go with a training, and that could matter."""
    experiment = plan.experiment
    network = experiment.network
    if network != Network() and experiment.update.project_radius is None:
        yield Change("server", "with another server")
    rates = [network.link, *(group.link for group in experiment.workers)]
    if network.server_bandwidth_bytes_per_s or any(each.bandwidth_bytes_per_s for each in rates):
        yield Change("bandwidth", "with twice the bandwidth")
    slowest = slowest_slot(plan)
    if slowest is not None:
        yield Change("without", f"without {slowest}, the slowest worker", slowest)


def slowest_slot(plan: TrainingPlan) -> str | None:
    """Return the slot whose steps take longest; None: none is clearly slower than all others."""
    means = {slot: step_s(plan, slot) for slot in plan.groups}
    if len(means) < 2 or max(means.values()) < SLOWER * min(means.values()):
        return None
    return max(means, key=lambda slot: means[slot])


def step_s(plan: TrainingPlan, slot: str) -> float:
    """Return the mean seconds of a worker's steps with its own batch, without jitter and faults."""
    size = plan.experiment.batch_sizes[slot]
    group = plan.groups[slot].model_copy(update={"jitter": Jitter(distribution="none")})
    steps = StepTime(group, plan.experiment.seed, slot, size)
    return fmean(steps.seconds(clock, size) for clock in range(len(group.trace) or 1))


def _faster(plan: TrainingPlan) -> TrainingPlan:
    def doubled(link: Link) -> Link:
        rate = link.bandwidth_bytes_per_s
        return link if rate is None else link.model_copy(update={"bandwidth_bytes_per_s": 2 * rate})

    experiment = plan.experiment
    network = experiment.network
    rate = network.server_bandwidth_bytes_per_s
    twice = network.model_copy(
        update={
            "link": doubled(network.link),
            "server_bandwidth_bytes_per_s": None if rate is None else 2 * rate,
        }
    )
    workers = tuple(
        group.model_copy(update={"link": doubled(group.link)}) for group in experiment.workers
    )
    groups = {
        slot: group.model_copy(update={"link": doubled(group.link)})
        for slot, group in plan.groups.items()
    }
    changed = experiment.model_copy(update={"network": twice, "workers": workers})
    return replace(plan, experiment=changed, groups=groups)


def _without(plan: TrainingPlan, slot: str) -> TrainingPlan | None:
    """Return the training without a worker, the others doing all the work; those of its group that
    come after it move up.
    """
    experiment, gone = plan.experiment, Slot(slot)
    if experiment.worker_count - 1 < max(1, experiment.cluster.min_workers):
        return None
    if experiment.cluster.server_placement == "with-workers" and (
        experiment.cluster.server_shards >= experiment.worker_count
    ):
        return None
    if any(_names(fault, gone) for fault in experiment.faults):
        return None
    workers, groups = [], {}
    for group in experiment.workers:
        trace = group.trace
        count = group.count
        if group.name == gone.group:
            count -= 1
            if trace and isinstance(trace[0], tuple):
                trace = tuple(each for index, each in enumerate(trace) if index != gone.number)
        if not count:
            continue
        update = {"count": count, "trace": trace}
        workers.append(group.model_copy(update=update))
        described = plan.groups[next(iter(_slots(experiment, group.name)))]
        for left in _slots(experiment, group.name)[:count]:
            groups[left] = described.model_copy(update=update)
    smaller = experiment.model_copy(update={"workers": tuple(workers)})
    return replace(plan, experiment=smaller, groups=groups, shards={})


def _slots(experiment: Experiment, group: str) -> list[str]:
    return [slot for slot, each in experiment.slots().items() if each.name == group]


def _names(fault: object, slot: Slot) -> bool:
    """Say whether a fault is one of particular workers of that group."""
    if isinstance(fault, Crash):
        return Slot(fault.worker).group == slot.group
    return any(name in (str(slot), slot.group) for name in getattr(fault, "workers", ()))
