"""Variations of a setting: without what may slow it down, with what one can change, and clusters
of other sizes.

Each is a whole setting with one thing changed. `diagnosis` simulates and compares them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import inf
from statistics import median_low
from typing import Any, Literal, NamedTuple

from raysync.config import Experiment, Jitter, Link, Network, ParadigmChoice, WorkerGroup
from raysync.config.cluster_settings import WireFormat
from raysync.core.capability import Capability
from raysync.core.ids import Slot
from raysync.core.paradigm import Paradigm
from raysync.errors import ConfigError
from raysync.paradigms.balanced import Balanced
from raysync.predict.setting import Setting
from raysync.predict.worker_count import with_another, without

Kind = Literal["link", "server link", "network", "server update", "slowest worker", "fault"]
SLOWER = 1.05  # a worker is slow if its steps take so many times the median's
SHARDS = (1, 2, 4, 8)  # numbers of servers that are tried, as far as there are so many workers
WIRE = "int8"  # the format of pushes that is tried: a quarter of the bytes
STEPS = 8  # the local steps that are tried


class Variation(NamedTuple):
    what: str  # the cause that is gone, the remedy, or the other cluster
    setting: Setting
    kind: Kind | None = None  # of a cause
    settles: bool = False  # whether the run begins at the pace without the change


# ---- causes: the setting without one, as no cluster can be ----


def causes(setting: Setting) -> Iterator[Variation]:
    """Yield what may slow a run down: one cause at a time, and then all links together."""
    yield from _links(setting)
    network = setting.experiment.network
    if setting.has_server and network.push_s:
        what = "the coordinator, which takes pushes one after another (push_s)"
        yield Variation(what, setting.change_network(push_s=0.0), "server update")
    if network.update_s or network.update_bytes_per_s:
        updates = "the server's update"
        what = updates if setting.has_server else "the update, which each worker makes"
        at_once = setting.change_network(update_s=0.0, update_bytes_per_s=None)
        yield Variation(what, at_once, "server update")
    yield from _uneven_steps(setting)
    if faults := setting.experiment.faults:
        what = " and ".join(dict.fromkeys(f"{fault.kind} faults" for fault in faults))
        yield Variation(f"the {what}", setting.change(faults=()), "fault")
    # where several links are equally slow, none of them alone is the cause
    free = _without_region_limits(setting).change_network(
        link=Link(), server_bandwidth_bytes_per_s=None, nodes=()
    )
    free = free.change_groups(setting.groups, lambda _, group: {"link": Link()})
    if free != setting:
        yield Variation("the network, its links together", free, "network")


def _links(setting: Setting) -> Iterator[Variation]:
    experiment, network = setting.experiment, setting.experiment.network
    if network.link != Link():
        what = "the link of every worker (network.link)"
        yield Variation(what, setting.change_network(link=Link()), "link")
    own = [slot for slot, group in setting.groups.items() if group.link != Link()]
    for name in dict.fromkeys(Slot(slot).group for slot in own):
        slots = [slot for slot in own if Slot(slot).group == name]
        what = f"{slots[0]}'s own link" if len(slots) == 1 else f"the links of group {name}"
        yield Variation(
            what, setting.change_groups(slots, lambda _, group: {"link": Link()}), "link"
        )
    if setting.has_server and network.server_bandwidth_bytes_per_s is not None:
        count = experiment.cluster.server_shards
        what = "the server's link" if count == 1 else f"the links of the {count} servers"
        apart = setting.change_cluster(server_placement="apart")
        yield Variation(
            what, apart.change_network(server_bandwidth_bytes_per_s=None), "server link"
        )
    if network.nodes:
        nodes = tuple(node.model_copy(update={"link": Link()}) for node in network.nodes)
        yield Variation("the links of the nodes", setting.change_network(nodes=nodes), "link")
    if network.regions is not None:
        yield Variation("the links between regions", _without_region_limits(setting), "link")


def _without_region_limits(setting: Setting) -> Setting:
    regions = setting.experiment.network.regions
    if regions is None:
        return setting
    count = len(regions.names)
    free = {"bandwidth_bytes_per_s": ((inf,) * count,) * count, "latency_s": ()}
    return setting.change_network(regions=regions.model_copy(update=free))


def _uneven_steps(setting: Setting) -> Iterator[Variation]:
    """Yield slow workers as fast as the median, and varying steps as steady ones."""
    if slow := slow_slots(setting):
        pace_s = median_low(setting.steps_s.values())
        quick = setting.change_groups(
            slow, lambda slot, group: {"speed": group.speed * setting.steps_s[slot] / pace_s}
        )
        what = f"the slowness of {name_slots(setting, slow)}"
        yield Variation(what, quick, "slowest worker")
    if any(map(_varies, setting.groups.values())):
        none = Jitter(distribution="none")
        steady = setting.change_groups(setting.groups, lambda _, group: {"jitter": none})
        what = "the slowest worker of the moment: steps of one worker vary"
        yield Variation(what, steady, "slowest worker")


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


# ---- remedies: the setting with a change that one can make ----


def remedies(setting: Setting) -> Iterator[Variation]:
    """Yield the remedies that go with the setting, the simplest first."""
    experiment, choice = setting.experiment, setting.choice
    if setting.has_server:
        yield from _other_servers(setting)
        if choice.name == "bsp" and experiment.describes_all_reduce:
            what = "an all-reduce instead of the server (exchange: all-reduce)"
            spec = {"name": "bsp", **choice.parameters, "exchange": "all-reduce"}
            yield Variation(what, replace(setting, choice=ParadigmChoice.model_validate(spec)))
        if takes_wire(experiment):
            wire = WireFormat.model_validate({"name": WIRE})
            what = f"pushes in {WIRE} (cluster: {{wire: {WIRE}}})"
            yield Variation(what, setting.change_cluster(wire=wire))
        yield from _local_steps(setting)
    yield from _balanced_batches(setting)
    slow = slow_slots(setting)
    hurt = dict.fromkeys(
        slot for fault in experiment.faults for slot in experiment.slots_of(fault.targets)
    )
    for slots in (slow, list(hurt) if list(hurt) != slow else []):
        if slots and (smaller := without(setting, slots)) is not None:
            yield Variation(f"leaving out {name_slots(setting, slots)}", smaller)


def _other_servers(setting: Setting) -> Iterator[Variation]:
    counts = {*SHARDS, len(setting.groups)}
    for count, placement in server_choices(setting.experiment, counts):
        if count >= setting.experiment.cluster.server_shards:
            where = "apart from the workers" if placement == "apart" else "on the workers' nodes"
            settings = f"server_shards: {count}, server_placement: {placement}"
            what = f"{count} server{'s' * (count > 1)} {where} (cluster: {{{settings}}})"
            changed = setting.change_cluster(server_shards=count, server_placement=placement)
            yield Variation(what, changed)


def server_choices(experiment: Experiment, counts: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield other numbers of servers, with their placement; none where servers take no time."""
    cluster = experiment.cluster
    if not _can_divide(experiment) or cluster.server_gpus:
        return
    current = (cluster.server_shards, cluster.server_placement)
    for placement in ("apart", "with-workers"):
        if placement == "apart" or not cluster.server_label_selector:
            for count in sorted(counts):
                if count <= experiment.worker_count and (count, placement) != current:
                    yield count, placement


def _can_divide(experiment: Experiment) -> bool:
    """Return whether more servers can save time, and the update can be divided among them."""
    return not takes_no_time(experiment) and experiment.update.project_radius is None


def takes_no_time(experiment: Experiment) -> bool:
    """Return whether gradients travel and are applied in no time."""
    network = experiment.network.model_copy(update={"vector_bytes": Network().vector_bytes})
    return network == Network() and not experiment.has_links


def takes_wire(experiment: Experiment) -> bool:
    """Return whether a smaller format of pushes can save time, with a server."""
    is_plain, combine = experiment.cluster.wire.is_plain, experiment.update.combine
    return is_plain and combine == "mean" and not takes_no_time(experiment)


def _local_steps(setting: Setting) -> Iterator[Variation]:
    experiment, choice = setting.experiment, setting.choice
    is_long = setting.pushes >= 3 * STEPS * experiment.worker_count
    can_save = not takes_no_time(experiment) and experiment.local is None
    if is_long and can_save and takes_local_steps(choice):
        local = with_local_steps(choice, STEPS)
        what = f"{STEPS} local steps before each push ({local.label})"
        yield Variation(what, replace(setting, choice=local))


def takes_local_steps(choice: ParadigmChoice) -> bool:
    """Return whether local steps can be made before each push of a paradigm."""
    paradigm = choice.make()
    return isinstance(paradigm, Paradigm) and not any(
        demand in (Capability.LOCAL_STEPS, Capability.SAME_WEIGHTS)
        for demand, _ in paradigm.demands()
    )


def with_local_steps(choice: ParadigmChoice, steps: int) -> ParadigmChoice:
    inner = {"name": choice.name, **choice.parameters}
    return ParadigmChoice.model_validate({"name": "local", "paradigm": inner, "steps": steps})


def _balanced_batches(setting: Setting) -> Iterator[Variation]:
    """Yield the batches that suit unequal workers; an update is still made of as many samples."""
    experiment, choice, steps_s = setting.experiment, setting.choice, setting.steps_s.values()
    if max(steps_s) <= SLOWER * min(steps_s) or experiment.global_batch <= len(steps_s):
        return
    paradigm = setting.training.make(choice)
    assert isinstance(paradigm, Paradigm), "a setting of a network in stages"
    if any(demand is Capability.BATCH_SIZE for demand, _ in paradigm.demands()):
        return
    spec: dict[str, Any] = {"name": Balanced.name}
    if choice.name != Balanced.paradigm or choice.parameters:
        spec["paradigm"] = {"name": choice.name, **choice.parameters}
    if experiment.micro_batch is not None:  # no micro-batch is divided
        spec["multiple"] = experiment.micro_batch
    try:
        balanced = ParadigmChoice.model_validate(spec)
        setting.training.make(balanced)
    except ConfigError:  # a batch in the file is no multiple of the micro-batch
        return
    what = f"batches that suit the speeds of the workers ({balanced.label})"
    yield Variation(what, replace(setting, choice=balanced), settles=True)


# ---- other clusters ----


def other_clusters(setting: Setting) -> Iterator[Variation]:
    """Yield the other clusters that the paradigm can have."""
    for what, changed in _other_clusters(setting):
        if changed is not None:
            yield Variation(what, changed)


def _other_clusters(setting: Setting) -> Iterator[tuple[str, Setting | None]]:
    experiment, cluster = setting.experiment, setting.experiment.cluster
    network, count = experiment.network, cluster.server_shards
    has_room = cluster.server_placement == "apart" or count < experiment.worker_count
    if _can_divide(experiment) and has_room and not cluster.server_gpus:
        yield "with another server", setting.change_cluster(server_shards=count + 1)
    links = [network.link, *(group.link for group in experiment.workers)]
    if network.server_bandwidth_bytes_per_s or any(link.bandwidth_bytes_per_s for link in links):
        yield "with twice the bandwidth", _with_twice_the_bandwidth(setting)
    means = setting.steps_s
    slowest = max(means, key=lambda slot: means[slot])
    if len(means) > 1 and means[slowest] >= SLOWER * min(means.values()):
        yield f"without {slowest}, the slowest worker", without(setting, [slowest])
    if len(means) > 1:
        fastest = min(means, key=lambda slot: means[slot] / experiment.batch_sizes[slot])
        yield f"with {fastest} alone", without(setting, set(means) - {fastest})
    for group in experiment.workers:
        larger = with_another(setting, group.name)
        yield f"with one more worker of group {group.name}", larger


def _with_twice_the_bandwidth(setting: Setting) -> Setting:
    network, workers = setting.experiment.network, setting.experiment.workers

    def twice(rate: float | None) -> float | None:
        return None if rate is None else 2 * rate

    def doubled(link: Link) -> dict[str, Link]:
        rate = twice(link.bandwidth_bytes_per_s)
        return {"link": link.model_copy(update={"bandwidth_bytes_per_s": rate})}

    changed = setting.change_network(
        **doubled(network.link),
        server_bandwidth_bytes_per_s=twice(network.server_bandwidth_bytes_per_s),
    ).change(workers=tuple(group.model_copy(update=doubled(group.link)) for group in workers))
    return changed.change_groups(setting.groups, lambda _, group: doubled(group.link))
