"""Changes that one can make to a run or its cluster, each as the setting with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from raysync.config import Experiment, Link, Network, ParadigmChoice
from raysync.config.cluster_settings import WireFormat
from raysync.core.capability import Capability
from raysync.core.paradigm import Paradigm
from raysync.errors import ConfigError
from raysync.paradigms.balanced import Balanced
from raysync.predict.limits import SLOWER, name_slots, slow_slots
from raysync.predict.setting import Setting
from raysync.predict.worker_count import with_another, without

SHARDS = (1, 2, 4, 8)
"""The numbers of servers that are tried, as far as there are so many workers."""
WIRE = "int8"
"""The format of pushes that is tried where an exchange takes time: a quarter of the bytes."""
STEPS = 8
"""The local steps that are tried where an exchange takes time."""


class Remedy(NamedTuple):
    """Something that can be done about a bottleneck."""

    what: str
    setting: Setting
    settles: bool = False
    """Whether the run begins at the pace without the change."""


def changes(setting: Setting) -> Iterator[Remedy]:
    """Yield the changes that go with the setting, the simplest first."""
    yield from _of_servers(setting)
    yield from _of_exchange(setting)
    yield from _of_wire(setting)
    yield from _of_local_steps(setting)
    yield from _of_batches(setting)
    slow = slow_slots(setting)
    hurt = dict.fromkeys(
        slot
        for fault in setting.experiment.faults
        for slot in setting.experiment.slots_of(fault.targets)
    )
    for slots in (slow, list(hurt) if list(hurt) != slow else []):
        if slots and (smaller := without(setting, slots)) is not None:
            yield Remedy(f"leaving out {name_slots(setting, slots)}", smaller)


def _of_servers(setting: Setting) -> Iterator[Remedy]:
    cluster, workers = setting.experiment.cluster, len(setting.groups)
    if not setting.has_server:
        return
    for count, placement in server_choices(setting.experiment, {*SHARDS, workers}):
        if count >= cluster.server_shards:
            where = "apart from the workers" if placement == "apart" else "on the workers' nodes"
            settings = f"server_shards: {count}, server_placement: {placement}"
            what = f"{count} server{'s' * (count > 1)} {where} (cluster: {{{settings}}})"
            changed = setting.change_cluster(server_shards=count, server_placement=placement)
            yield Remedy(what, changed)


def server_choices(experiment: Experiment, counts: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield other numbers of servers, with their placement; none where servers take no time."""
    cluster = experiment.cluster
    if (
        takes_no_time(experiment)
        or experiment.update.project_radius is not None
        or cluster.server_gpus
    ):
        return
    current = (cluster.server_shards, cluster.server_placement)
    for placement in ("apart", "with-workers"):
        if placement == "apart" or not cluster.server_label_selector:
            for count in sorted(counts):
                if count <= experiment.worker_count and (count, placement) != current:
                    yield count, placement


def takes_no_time(experiment: Experiment) -> bool:
    """Return whether gradients travel and are applied in no time."""
    network = experiment.network.model_copy(update={"vector_bytes": Network().vector_bytes})
    return network == Network() and not experiment.has_links


def takes_wire(experiment: Experiment) -> bool:
    """Return whether a smaller format of pushes can save time, with a server."""
    is_plain, combine = experiment.cluster.wire.is_plain, experiment.update.combine
    return is_plain and combine == "mean" and not takes_no_time(experiment)


def _of_wire(setting: Setting) -> Iterator[Remedy]:
    if setting.has_server and takes_wire(setting.experiment):
        changed = setting.change_cluster(wire=WireFormat.model_validate({"name": WIRE}))
        yield Remedy(f"pushes in {WIRE} (cluster: {{wire: {WIRE}}})", changed)


def _of_local_steps(setting: Setting) -> Iterator[Remedy]:
    experiment, choice = setting.experiment, setting.choice
    if takes_no_time(experiment) or experiment.local is not None or not setting.has_server:
        return
    if not takes_local_steps(choice):
        return
    local = with_local_steps(choice, STEPS)
    if setting.pushes >= 3 * STEPS * experiment.worker_count:
        what = f"{STEPS} local steps before each push ({local.label})"
        yield Remedy(what, replace(setting, choice=local))


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


def _of_exchange(setting: Setting) -> Iterator[Remedy]:
    choice = setting.choice
    if (
        choice.name != "bsp"
        or not setting.has_server
        or not setting.experiment.describes_all_reduce
    ):
        return
    collective = ParadigmChoice.model_validate(
        {"name": "bsp", **choice.parameters, "exchange": "all-reduce"}
    )
    yield Remedy(
        "an all-reduce instead of the server (exchange: all-reduce)",
        replace(setting, choice=collective),
    )


def _of_batches(setting: Setting) -> Iterator[Remedy]:
    """Yield the batches that suit unequal workers; each update is still made of as many samples."""
    experiment, choice, steps_s = setting.experiment, setting.choice, setting.steps_s.values()
    if max(steps_s) <= SLOWER * min(steps_s) or experiment.global_batch <= len(steps_s):
        return
    paradigm = setting.training.make(choice)
    assert isinstance(paradigm, Paradigm), "a setting of a network in stages"
    if any(demand is Capability.BATCH_SIZE for demand, _ in paradigm.demands()):
        return
    spec = balanced_spec(choice.name, choice.parameters, experiment.micro_batch)
    try:
        balanced = ParadigmChoice.model_validate(spec)
        setting.training.make(balanced)
    except ConfigError:  # a batch in the file is no multiple of the micro-batch
        return
    what = f"batches that suit the speeds of the workers ({balanced.label})"
    yield Remedy(what, replace(setting, choice=balanced), settles=True)


def balanced_spec(
    name: str, parameters: Mapping[str, Any], micro_batch: int | None
) -> dict[str, Any]:
    """Return `balanced` around a paradigm, as an experiment file has it."""
    spec: dict[str, Any] = {"name": Balanced.name}
    if name != Balanced.paradigm or parameters:
        spec["paradigm"] = {"name": name, **parameters}
    if micro_batch is not None:  # no micro-batch is divided
        spec["multiple"] = micro_batch
    return spec


# ---- other clusters ----


def growth(setting: Setting) -> Iterator[tuple[str, Setting | None]]:
    """Yield other clusters by their names; None: the paradigm cannot have that one."""
    experiment = setting.experiment
    network = experiment.network
    if not takes_no_time(experiment) and experiment.update.project_radius is None:
        yield "with another server", _with_another_server(setting)
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


def _with_another_server(setting: Setting) -> Setting | None:
    experiment, cluster = setting.experiment, setting.experiment.cluster
    is_full = cluster.server_placement != "apart" and (
        cluster.server_shards >= experiment.worker_count
    )
    if is_full or cluster.server_gpus:
        return None
    return setting.change_cluster(server_shards=cluster.server_shards + 1)


def _with_twice_the_bandwidth(setting: Setting) -> Setting:
    network = setting.experiment.network

    def twice(rate: float | None) -> float | None:
        return None if rate is None else 2 * rate

    def doubled(link: Link) -> dict[str, Link]:
        rate = twice(link.bandwidth_bytes_per_s)
        return {"link": link.model_copy(update={"bandwidth_bytes_per_s": rate})}

    changed = setting.change_network(
        **doubled(network.link),
        server_bandwidth_bytes_per_s=twice(network.server_bandwidth_bytes_per_s),
    )
    groups = {
        slot: group.model_copy(update=doubled(group.link)) for slot, group in setting.groups.items()
    }
    workers = [group.model_copy(update=doubled(group.link)) for group in setting.experiment.workers]
    return changed.change(workers=tuple(workers)).change_groups(groups)
