"""The setting with one more worker in a group."""

from __future__ import annotations

from dataclasses import replace

from raysync.bottlenecks.setting import Setting
from raysync.config import WorkerGroup
from raysync.config.durations import middle
from raysync.core.ids import worker_slot


def with_another(setting: Setting, name: str) -> Setting | None:
    """Return a setting with one more worker of that group, on the same work; None: the paradigm
    does not go with as many.

    It has the group's device, link and faults. Where each worker of the group has step times of its
    own, it has those of the one in the middle; it is on no node that names its workers one by one.
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
