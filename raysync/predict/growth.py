"""Changes of a cluster that advice times: a server, a faster network, a worker less or more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from raysync.config import Link, Network, ParadigmChoice
from raysync.predict.setting import Setting
from raysync.predict.worker_count import with_another, without
from raysync.training.preparation import TrainingPlan

Kind = Literal["server", "bandwidth", "without", "more"]
SLOWER = 1.05
"""A worker is the slowest if its steps take so many times those of the next one."""


@dataclass(frozen=True)
class Change:
    """A change of the cluster."""

    kind: Kind
    what: str
    """Its name in a sentence: with what, or without which worker."""
    who: str = ""
    """The slot of the worker that is left out, or the group that gets one more."""

    def applied_to(self, plan: TrainingPlan, choice: ParadigmChoice) -> TrainingPlan | None:
        """Return a training under that paradigm on the changed cluster; None: it cannot be done
        there.
        """
        setting = Setting(plan, choice)
        if self.kind == "server":
            changed = _with_another_server(setting)
        elif self.kind == "bandwidth":
            changed = _with_twice_the_bandwidth(setting)
        elif self.kind == "more":
            changed = with_another(setting, self.who)
        else:
            changed = without(setting, [self.who])
        return None if changed is None else changed.training


def changes(plan: TrainingPlan) -> Iterator[Change]:
    """Yield the changes that go with a training, and that could matter."""
    experiment = plan.experiment
    network = experiment.network
    if network != Network() and experiment.update.project_radius is None:
        yield Change("server", "with another server")
    rates = [network.link, *(group.link for group in experiment.workers)]
    if network.server_bandwidth_bytes_per_s or any(each.bandwidth_bytes_per_s for each in rates):
        yield Change("bandwidth", "with twice the bandwidth")
    slowest = _slowest_slot(plan)
    if slowest is not None:
        yield Change("without", f"without {slowest}, the slowest worker", slowest)
    for group in experiment.workers:
        yield Change("more", f"with one more worker of group {group.name}", group.name)


def _slowest_slot(plan: TrainingPlan) -> str | None:
    """Return the slot whose steps take longest; None: none is clearly slower than all others."""
    means = Setting(plan, plan.experiment.paradigm).steps_s
    if len(means) < 2 or max(means.values()) < SLOWER * min(means.values()):
        return None
    return max(means, key=lambda slot: means[slot])


def _with_another_server(setting: Setting) -> Setting | None:
    cluster = setting.experiment.cluster
    if (
        cluster.server_placement != "apart"
        and cluster.server_shards >= setting.experiment.worker_count
    ):
        return None
    return setting.change_cluster(server_shards=cluster.server_shards + 1)


def _with_twice_the_bandwidth(setting: Setting) -> Setting:
    network = setting.experiment.network
    rate = network.server_bandwidth_bytes_per_s
    changed = setting.change_network(
        link=_doubled(network.link), server_bandwidth_bytes_per_s=None if rate is None else 2 * rate
    )
    groups = {
        slot: group.model_copy(update={"link": _doubled(group.link)})
        for slot, group in setting.groups.items()
    }
    workers = [
        group.model_copy(update={"link": _doubled(group.link)})
        for group in setting.experiment.workers
    ]
    return changed.change(workers=tuple(workers)).change_groups(groups)


def _doubled(link: Link) -> Link:
    rate = link.bandwidth_bytes_per_s
    return link if rate is None else link.model_copy(update={"bandwidth_bytes_per_s": 2 * rate})
