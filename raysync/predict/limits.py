"""The limits that a run may have, each as the setting without it."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from statistics import median_low
from typing import Literal, NamedTuple

from raysync.config import Jitter, Link, Regions, WorkerGroup
from raysync.core.ids import Slot
from raysync.predict.setting import Setting

Kind = Literal["link", "server link", "network", "server update", "slowest worker", "fault"]
SLOWER = 1.05
"""A worker is slow if its steps take so many times the median's."""


class Limit(NamedTuple):
    """Something that may make a run slow."""

    kind: Kind
    what: str
    setting: Setting
    """The same run without that limit, as no cluster can be."""


def single_limits(setting: Setting) -> Iterator[Limit]:
    """Yield the limits that a run may have, one at a time."""
    yield from _of_links(setting)
    yield from _of_shared_links(setting)
    network = setting.experiment.network
    if network.update_s or network.update_bytes_per_s:
        what = (
            "the server's update" if setting.has_server else "the update, which each worker makes"
        )
        without = setting.change_network(update_s=0.0, update_bytes_per_s=None)
        yield Limit("server update", what, without)
    yield from _of_steps(setting)
    if setting.experiment.faults:
        what = " and ".join(
            dict.fromkeys(f"{each.kind} faults" for each in setting.experiment.faults)
        )
        yield Limit("fault", f"the {what}", setting.change(faults=()))


def _of_links(setting: Setting) -> Iterator[Limit]:
    experiment = setting.experiment
    network, groups = experiment.network, setting.groups
    if network.link != Link():
        without = setting.change_network(link=Link())
        yield Limit("link", "the link of every worker (network.link)", without)
    for name in dict.fromkeys(group.name for group in groups.values() if group.link != Link()):
        own = {slot: group for slot, group in groups.items() if group.name == name}
        freed = {slot: group.model_copy(update={"link": Link()}) for slot, group in own.items()}
        slots = f"{next(iter(own))}'s own link" if len(own) == 1 else f"the links of group {name}"
        yield Limit("link", slots, setting.change_groups(freed))
    if setting.has_server and network.server_bandwidth_bytes_per_s is not None:
        count = experiment.cluster.server_shards
        what = "the server's link" if count == 1 else f"the links of the {count} servers"
        without = setting.change_network(server_bandwidth_bytes_per_s=None)
        yield Limit("server link", what, without.change_cluster(server_placement="apart"))


def _of_shared_links(setting: Setting) -> Iterator[Limit]:
    network = setting.experiment.network
    if network.nodes:
        nodes = tuple(node.model_copy(update={"link": Link()}) for node in network.nodes)
        yield Limit("link", "the links of the nodes", setting.change_network(nodes=nodes))
    if (regions := network.regions) is not None:
        yield Limit("link", "the links between regions", _without_region_limits(setting, regions))
    if setting.has_server and network.push_s:
        what = "the coordinator, which takes pushes one after another (push_s)"
        yield Limit("server update", what, setting.change_network(push_s=0.0))


def _without_region_limits(setting: Setting, regions: Regions) -> Setting:
    count = len(regions.names)
    free = {"bandwidth_bytes_per_s": ((inf,) * count,) * count, "latency_s": ()}
    return setting.change_network(regions=regions.model_copy(update=free))


def whole_network(setting: Setting) -> Iterator[Limit]:
    """Yield all links together: where several are equally slow, none of them alone is the limit."""
    groups = setting.groups
    free = {slot: group.model_copy(update={"link": Link()}) for slot, group in groups.items()}
    without = setting.change_groups(free).change_network(
        link=Link(), server_bandwidth_bytes_per_s=None, nodes=()
    )
    if (regions := setting.experiment.network.regions) is not None:
        without = _without_region_limits(without, regions)
    if without != setting:
        yield Limit("network", "the network, its links together", without)


def _of_steps(setting: Setting) -> Iterator[Limit]:
    """Yield slow workers as if they were as fast as the median, and steps as if they were
    steady.
    """
    if slow := slow_slots(setting):
        pace_s = median_low(setting.steps_s.values())
        quick = {
            slot: group.model_copy(update={"speed": group.speed * setting.steps_s[slot] / pace_s})
            for slot, group in setting.groups.items()
            if slot in slow
        }
        what = f"the slowness of {name_slots(setting, slow)}"
        yield Limit("slowest worker", what, setting.change_groups(quick))
    if any(map(_varies, setting.groups.values())):
        steady = {
            slot: group.model_copy(update={"jitter": Jitter(distribution="none")})
            for slot, group in setting.groups.items()
        }
        what = "the slowest worker of the moment: steps of one worker vary"
        yield Limit("slowest worker", what, setting.change_groups(steady))


def _varies(group: WorkerGroup) -> bool:
    jitter = group.jitter
    if jitter.distribution in ("normal", "lognormal"):
        return jitter.sigma > 0
    return jitter.distribution != "none"


def slow_slots(setting: Setting) -> list[str]:
    """Return the slots whose steps take longer than the median's; none if all are alike."""
    pace_s = median_low(setting.steps_s.values())
    return [slot for slot in setting.groups if setting.steps_s[slot] > SLOWER * pace_s]


def name_slots(setting: Setting, slots: list[str]) -> str:
    """Name slots: a whole group by its name."""
    of_group = [slot for slot in setting.groups if Slot(slot).group == Slot(slots[0]).group]
    if len(slots) > 1 and slots == of_group:
        return f"the workers of group {Slot(slots[0]).group}"
    first = ", ".join(slots[:3])
    return f"{first} and {len(slots) - 3} more" if len(slots) > 3 else first
