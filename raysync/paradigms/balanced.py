"""Balanced: any paradigm, with batch sizes that suit the speeds of the workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le, Lt
from msgspec.structs import replace
from typing_extensions import override

from raysync.core.capability import Capability, Demand
from raysync.core.decisions import Decision, Note, Push, Release
from raysync.core.ids import Slot
from raysync.core.legality import location
from raysync.core.roster import Roster
from raysync.errors import ConfigError, IllegalDecision, unknown_name
from raysync.paradigms.batch_shares import DeviceSpeed, divide
from raysync.paradigms.measuring import Measuring, slot_of, smooth

Quantity = Annotated[int | float, Ge(0), Le(1e15)]
# The settings of a group in `workers`; batch_size 0: unknown until a worker pushes.
GROUP_DEFAULTS: Mapping[str, float] = {
    "batch_size": 0,
    "min_batch": 1,
    "max_batch": inf,
    "devices": 1,
    "fixed_s": 0.0,
    "per_sample_s": 1.0,
    "floor_s": 0.0,
}


# Deviations: the mean time of a sample is smoothed, not its inverse; by an exponential average
# instead of a NARX network; transfer counts.
#
# Batch norm normalises each worker's batch by itself, so its noise changes with the sizes. With
# `micro_batch: m` and `multiple: m` (times the devices of a worker) each worker normalises over m
# samples at a time (ghost batches: Hoffer et al. 2017, "Train longer, generalize better").
@dataclass
class Balanced(Measuring):
    """Another paradigm whose workers get batch sizes that make iterations equally long.

    Source: Chen et al., "Semi-dynamic load balancing" (LB-BSP, SoCC 2020; arXiv 1806.02508), for
    BSP: batches in proportion to predicted speeds (CPUs), or such that a + c b is equal (GPUs).

    The inner paradigm decides everything but `Release.batch_size`. After as many pushes as members,
    and when members change, the next release divides the batch again (`batch_shares.divide`) by the
    predicted time of b samples, per step:

        transfer + slowness x max(floor_s, fixed_s + per_sample_s b)

    with smoothed slowness (measured / described seconds) and transfer (from release to push,
    without computing). Without `per_sample_s` the time counts as proportional to the batch;
    repeated divisions still reach equal times. Around ASP the same rule equalises the pace.
    """

    name: ClassVar[str] = "balanced"

    smoothing: Annotated[float, Gt(0), Le(1)] = 0.3  # the weight of the latest iteration
    hysteresis: Annotated[float, Ge(0), Lt(1)] = 0.05  # a share of the longest predicted time
    multiple: Annotated[int, Ge(1)] = 1  # in samples, of every batch size
    # group -> the settings of `GROUP_DEFAULTS`; an experiment fills its own in
    workers: dict[str, dict[str, Quantity]] = field(default_factory=dict)
    # slot -> its batch size before any division, in samples
    own: dict[str, int] = field(default_factory=dict, init=False)
    # slot -> the present batch size, once set
    sizes: dict[str, int] = field(default_factory=dict, init=False)
    # slot -> smoothed seconds of computing / described ones; a new life inherits it
    slowness: dict[str, float] = field(default_factory=dict, init=False)
    # slot -> smoothed seconds from release to push without computing
    transfer_s: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        demands = self.inner.demands()
        if settings := [setting for demand, setting in demands if demand is Capability.BATCH_SIZE]:
            raise ConfigError(
                f"{self.name}: paradigm: {self.inner.name} sets batch sizes itself ({settings[0]})."
            )
        self._groups = {
            group: {**GROUP_DEFAULTS, **settings} for group, settings in self.workers.items()
        }
        for group in self._groups:
            self._check_group(f"{self.name}: workers: {group}", group)

    def _check_group(self, where: str, group: str) -> None:
        settings = self._groups[group]
        for setting in settings.keys() - GROUP_DEFAULTS.keys():
            raise unknown_name("setting", setting, GROUP_DEFAULTS, where=where)
        smallest, largest = self._smallest_batch(group), self._largest_batch(group)
        size = settings["batch_size"]
        if not settings["per_sample_s"]:
            raise ConfigError(f"{where}: per_sample_s: 0; it must be above 0.")
        if size % self.multiple:
            raise ConfigError(
                f"{self.name}: multiple: the batch_size of group {group!r}, {size:g}, is no"
                f" multiple of {self.multiple}."
            )
        if size and not smallest <= size <= largest:
            raise ConfigError(
                f"{where}: batch_size: {size:g} samples; allowed: {smallest:g} to {largest:g}."
            )

    @override
    def demands(self) -> Iterator[Demand]:
        yield Capability.BATCH_SIZE, self.name
        yield from self.inner.demands()

    @override
    def measure(self, roster: Roster, push: Push) -> None:
        slot, row, pushed = slot_of(push[0]), roster.telemetry(push[0]), roster.buffered[push]
        steps, settings = pushed.steps, self._settings(Slot(slot).group)
        samples = pushed.samples // steps
        if slot not in self.own:
            self.own[slot] = int(settings["batch_size"]) or samples
        if row.busy_s <= 0:
            return  # nothing to predict from
        assert row.active_s is not None, "a push without a release"
        growing_s = settings["fixed_s"] + settings["per_sample_s"] * samples
        described_s = max(settings["floor_s"], growing_s)
        transfer_s = max(0.0, row.active_s - row.busy_s)
        smooth(self.slowness, slot, row.busy_s / steps / described_s, self.smoothing)
        smooth(self.transfer_s, slot, transfer_s / steps, self.smoothing)

    @override
    def adapt(self, roster: Roster, decided: list[Decision]) -> list[Decision]:
        decisions: list[Decision] = []
        for decision in decided:
            if not isinstance(decision, Release):
                decisions.append(decision)
                continue
            if decision.batch_size is not None:
                raise IllegalDecision(
                    f"{location(self.inner, 'on_push')} releases {decision.worker!r} with"
                    f" batch_size={decision.batch_size}, but {self.name} sets the sizes."
                )
            if self.slowness and self.is_time_to_compare(roster):
                decisions += self._divide(roster)
            size = self.sizes.get(slot_of(decision.worker))
            decisions.append(replace(decision, batch_size=size))
        return decisions

    # The divided batch is the sum of the members' own sizes, so a leaving worker takes its own size
    # along and `update.lr_scaling`, which counts pushes, stays right. Limits (`max_batch`,
    # `min_batch` per device) never exclude a worker's own size, which it has computed before. Sizes
    # change if the longest predicted time falls by more than `hysteresis`, or if the sum is wrong.
    def _divide(self, roster: Roster) -> Iterator[Decision]:
        self.note_comparison(roster)
        slots = [
            slot
            for slot in map(slot_of, roster.members)
            if slot in self.slowness and self.own[slot] % self.multiple == 0
        ]
        if not slots:
            return
        devices = [self._device(slot) for slot in slots]
        present = [self.sizes.get(slot, self.own[slot]) for slot in slots]
        total = sum(self.own[slot] for slot in slots)
        sizes = divide(devices, total, self.multiple)
        before_s, after_s = (
            max(device.seconds(size) for device, size in zip(devices, division, strict=True))
            for division in (present, sizes)
        )
        if sum(present) == total and before_s - after_s <= self.hysteresis * before_s:
            return
        self.sizes |= zip(slots, sizes, strict=True)
        values = {"smallest": min(sizes), "largest": max(sizes), "samples": total}
        yield Note(self.name, "", {**values, "before_s": before_s, "predicted_s": after_s})

    def _device(self, slot: str) -> DeviceSpeed:
        group = Slot(slot).group
        settings = self._settings(group)
        return DeviceSpeed(
            slowness=self.slowness[slot],
            transfer_s=self.transfer_s[slot],
            fixed_s=settings["fixed_s"],
            per_sample_s=settings["per_sample_s"],
            floor_s=settings["floor_s"],
            smallest=min(self._smallest_batch(group), self.own[slot]),
            largest=max(self._largest_batch(group), self.own[slot]),
        )

    def _settings(self, group: str) -> Mapping[str, float]:
        return self._groups.get(group, GROUP_DEFAULTS)

    def _smallest_batch(self, group: str) -> int:
        settings = self._settings(group)
        least = int(settings["devices"] * settings["min_batch"])
        return -(-least // self.multiple) * self.multiple  # rounded up

    def _largest_batch(self, group: str) -> float:
        largest = self._settings(group)["max_batch"]
        return largest // self.multiple * self.multiple if largest < inf else inf
