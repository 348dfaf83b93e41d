"""The changes that one can make to a run, each as the setting with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from raysync.config import ParadigmChoice
from raysync.core.capability import Capability
from raysync.core.paradigm import Paradigm
from raysync.errors import ConfigError
from raysync.paradigms.balanced import Balanced
from raysync.predict.limits import SLOWER, named, slow_slots
from raysync.predict.setting import Setting
from raysync.predict.worker_count import without

SHARDS = (1, 2, 4)
"""The numbers of servers that are tried, and as many as there are workers."""


class Remedy(NamedTuple):
    """Something that can be done about a bottleneck."""

    what: str
    """The name that a sentence gives it: what to set."""
    setting: Setting
    settles: bool = False
    """Whether the run begins as without the change, and only then gets its pace."""


def changes(setting: Setting) -> Iterator[Remedy]:
    """Yield the changes that go with the setting, the simplest first."""
    yield from _of_servers(setting)
    yield from _of_exchange(setting)
    yield from _of_batches(setting)
    slow = slow_slots(setting)
    if slow and (smaller := without(setting, slow)) is not None:
        yield Remedy(f"leaving out {named(setting, slow)}", smaller)
    hurt = [
        slot
        for fault in setting.experiment.faults
        for slot in setting.experiment.slots_of(fault.named)
    ]
    hurt = list(dict.fromkeys(hurt))
    if hurt and hurt != slow and (smaller := without(setting, hurt)) is not None:
        yield Remedy(f"leaving out {named(setting, hurt)}", smaller)


def _of_servers(setting: Setting) -> Iterator[Remedy]:
    cluster, workers = setting.experiment.cluster, len(setting.groups)
    if not setting.has_server or setting.experiment.update.project_radius is not None:
        return
    network = setting.experiment.network
    if network == type(network)() and not setting.experiment.has_links:
        return  # servers take no time
    counts = sorted({*(each for each in SHARDS if each <= workers), workers})
    for placement in ("apart", "with-workers"):
        if placement == "with-workers" and cluster.server_label_selector:
            continue
        for count in counts:
            if count < cluster.server_shards:
                continue
            if (count, placement) == (cluster.server_shards, cluster.server_placement):
                continue
            where = "apart from the workers" if placement == "apart" else "on the workers' nodes"
            settings = f"server_shards: {count}, server_placement: {placement}"
            what = f"{count} server{'s' * (count > 1)} {where} (cluster: {{{settings}}})"
            changed = setting.change_cluster(server_shards=count, server_placement=placement)
            yield Remedy(what, changed)


def _of_batches(setting: Setting) -> Iterator[Remedy]:
    """Yield the batches that suit unequal workers: the updates stay those of the same samples."""
    experiment, choice, steps_s = setting.experiment, setting.choice, setting.steps_s.values()
    if max(steps_s) <= SLOWER * min(steps_s) or experiment.global_batch <= len(steps_s):
        return
    paradigm = setting.training.make(choice)
    assert isinstance(paradigm, Paradigm), "a setting of a network in stages"
    if any(what is Capability.BATCH_SIZE for what, _ in paradigm.demands()):
        return
    spec = balanced_spec(choice.name, choice.parameters, experiment.micro_batch)
    try:
        balanced = ParadigmChoice.model_validate(spec)
        setting.training.make(balanced)
    except ConfigError:  # a batch of the file's is no multiple of the micro-batch
        return
    what = f"batches that suit the speeds of the workers ({balanced.label})"
    yield Remedy(what, replace(setting, choice=balanced), settles=True)


def balanced_spec(
    name: str, parameters: Mapping[str, Any], micro_batch: int | None
) -> dict[str, Any]:
    """Return `balanced` around a paradigm, as an experiment file has it; with micro-batches it
    divides whole ones.
    """
    spec: dict[str, Any] = {"name": Balanced.name}
    if name != Balanced.paradigm or parameters:
        spec["paradigm"] = {"name": name, **parameters}
    return spec if micro_batch is None else {**spec, "multiple": micro_batch}


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
        "an all-reduce in place of the server (exchange: all-reduce)",
        replace(setting, choice=collective),
    )
