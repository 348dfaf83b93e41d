"""The setting with one more worker, or with fewer, on the same work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from raysync.config import Experiment, WorkerGroup
from raysync.config.durations import middle
from raysync.config.faults import Crash, Fault
from raysync.core.ids import Slot, worker_slot
from raysync.predict.setting import Setting


def with_another(setting: Setting, name: str) -> Setting | None:
    """Return a setting with one more worker of that group, on the same work; None: infeasible.

    It has the group's device, link and faults and, where each worker has its own step times, those
    of the middle one. It is on no node that names its workers one by one.
    """
    before = setting.experiment
    larger = setting.change(
        workers=tuple(_grown(group) if group.name == name else group for group in before.workers)
    )
    experiment = larger.experiment
    if experiment.make(setting.choice).infeasible_reason(experiment.worker_count):
        return None
    known = {
        slot: _grown(group) if group.name == name else group
        for slot, group in setting.groups.items()
    }
    like = known[worker_slot(name, 0)]  # the same for all of a group
    groups = {slot: known.get(slot, like) for slot in experiment.slots()}
    return replace(larger, training=replace(larger.training, groups=groups, shards={}))


def _grown(group: WorkerGroup) -> WorkerGroup:
    trace = group.trace
    if trace and isinstance(trace[0], tuple):
        trace = (*trace, middle(trace))
    return group.model_copy(update={"count": group.count + 1, "trace": trace})


def without(setting: Setting, slots: Collection[str]) -> Setting | None:
    """Return a setting without the workers in these slots; None: the others alone cannot run it.

    The others are renumbered, as in a file with a smaller `count`, and so draw other jitter; their
    faults, traces and places on nodes stay with them.
    """
    names: dict[str, str] = {}  # slot of a worker that is left -> its new slot
    counts: Counter[str] = Counter()
    for slot in setting.groups:
        if slot not in slots:
            group = Slot(slot).group
            names[slot] = worker_slot(group, counts[group])
            counts[group] += 1
    before = setting.experiment
    cluster = before.cluster
    servers = 1 if cluster.server_placement == "apart" else cluster.server_shards
    if len(names) < max(1, cluster.min_workers, servers):
        return None
    smaller = setting.change(
        workers=tuple(_shrunk(group, names) for group in before.workers if group.name in counts),
        faults=tuple(_faults(before, names)),
    )
    nodes = tuple(
        node.model_copy(update={"workers": remaining})
        for node in before.network.nodes
        if (remaining := _renamed(before, node.workers, names))
    )
    smaller = smaller.change_network(nodes=nodes)
    if smaller.experiment.make(smaller.choice).infeasible_reason(len(names)):
        return None
    groups = {
        names[slot]: _shrunk(group, names)
        for slot, group in setting.groups.items()
        if slot in names
    }
    return replace(smaller, training=replace(smaller.training, groups=groups, shards={}))


def _shrunk(group: WorkerGroup, names: Mapping[str, str]) -> WorkerGroup:
    """Return a group with its remaining workers."""
    numbers = [number for number in range(group.count) if worker_slot(group.name, number) in names]
    trace = group.trace
    if trace and isinstance(trace[0], tuple):
        trace = tuple(trace[number] for number in numbers)
    return group.model_copy(update={"count": len(numbers), "trace": trace})


def _faults(before: Experiment, names: Mapping[str, str]) -> Iterator[Fault]:
    """Yield the faults of the workers that are left."""
    for fault in before.faults:
        if isinstance(fault, Crash):
            if fault.worker in names:
                yield fault.model_copy(update={"worker": names[fault.worker]})
        elif not fault.workers:
            yield fault
        elif remaining := _renamed(before, fault.workers, names):
            yield fault.model_copy(update={"workers": remaining})


def _renamed(
    before: Experiment, workers: tuple[str, ...], names: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the new slots of workers, which were named by slot or group."""
    return tuple(names[slot] for slot in before.slots_of(workers) if slot in names)
