"""Equal times on unequal devices by the division of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf

ROUNDING = 1e-9  # in units: a share so close to a whole number of units counts as it


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """The predicted time of an iteration of b samples, with limits of b:

    transfer_s + slowness x max(floor_s, fixed_s + per_sample_s x b)
    """

    slowness: float  # above 0
    transfer_s: float = 0.0  # the way to the server and back, whatever the batch
    fixed_s: float = 0.0
    per_sample_s: float = 1.0  # above 0
    floor_s: float = 0.0
    smallest: int = 1
    largest: float = inf

    def seconds(self, samples: float) -> float:
        computing_s = max(self.floor_s, self.fixed_s + self.per_sample_s * samples)
        return self.transfer_s + self.slowness * computing_s

    def samples_within(self, seconds: float) -> float:
        """Return the most samples that fit into so many seconds, or into the shortest iteration."""
        computing_s = max((seconds - self.transfer_s) / self.slowness, self.floor_s)
        samples = (computing_s - self.fixed_s) / self.per_sample_s
        return min(max(samples, self.smallest), self.largest)


def divide(devices: Sequence[DeviceSpeed], total: int, multiple: int = 1) -> list[int]:
    """Divide B = `total` samples so that times are as equal as limits and whole units allow.

    Source: LB-BSP (Chen et al., SoCC 2020; arXiv 1806.02508): sum b_i = B with equal t_i(b_i).

    The samples that fit into T seconds rise with T: bisection finds the T at which they are the
    whole batch. Units of `multiple` samples follow by the largest remainder, ties by device order.
    Limits and `total` are multiples of `multiple`.
    """
    least = sum(device.smallest for device in devices)
    most = sum(device.largest for device in devices)
    assert least <= total <= most, f"{total} samples for devices that take {least} to {most}"
    shares = _equal_times(devices, total)
    units = [floor(share / multiple + ROUNDING) for share in shares]
    # A device that gets another unit has a remainder, so it stays within its largest share.
    order = sorted(range(len(devices)), key=lambda index: units[index] - shares[index] / multiple)
    for index in order[: total // multiple - sum(units)]:
        units[index] += 1
    return [unit * multiple for unit in units]


def _equal_times(devices: Sequence[DeviceSpeed], total: int) -> list[float]:
    """Return the unrounded shares, whose sum is the total."""
    # the most samples that do not lengthen the shortest iterations
    free = [device.samples_within(0.0) for device in devices]
    if sum(free) >= total:  # no times are shorter, so nothing is gained by equal ones
        least = sum(device.smallest for device in devices)
        part = (total - least) / (sum(free) - least) if sum(free) > least else 0.0
        return [
            device.smallest + part * (share - device.smallest)
            for device, share in zip(devices, free, strict=True)
        ]
    low, high = 0.0, max(device.seconds(min(device.largest, total)) for device in devices)
    while low < (middle := (low + high) / 2) < high:  # until the two are neighbouring numbers
        if sum(device.samples_within(middle) for device in devices) < total:
            low = middle
        else:
            high = middle
    return [device.samples_within(high) for device in devices]
