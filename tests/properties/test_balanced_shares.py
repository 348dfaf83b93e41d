"""Batches that suit the speeds: what holds for every cluster and every inner paradigm."""

from itertools import product
from math import inf

from hypothesis import given, strategies as st
from msgspec.structs import replace

from raysync.core.decisions import Apply, Note, Release
from raysync.core.machine import Machine
from raysync.paradigms import make
from raysync.paradigms.batch_shares import DeviceSpeed, divide
from raysync.testing.drive import SAMPLES
from tests.builders.paradigms import VARIANTS
from tests.builders.plans import schedules
from tests.builders.schedules import simulate

SECONDS = st.sampled_from([0.0, 0.0, 0.5, 1.0, 3.0])


@st.composite
def clusters(draw):
    """Devices, a batch that they can take, and the unit of their shares."""
    multiple = draw(st.sampled_from([1, 1, 2, 4]))
    devices = [
        DeviceSpeed(
            draw(st.floats(0.1, 10)),
            draw(SECONDS),
            draw(SECONDS),
            draw(st.floats(0.05, 2)),
            draw(SECONDS),
            multiple * (smallest := draw(st.integers(1, 2))),
            multiple * draw(st.sampled_from([smallest, smallest + 3, inf])),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    least = sum(device.smallest for device in devices)
    most = min(sum(device.largest for device in devices), least + 12 * multiple)
    units = draw(st.integers(least // multiple, int(most) // multiple))
    return devices, units * multiple, multiple


@given(clusters())
def test_no_division_is_faster_by_more_than_a_unit(cluster):
    """Against all divisions into whole units that the limits allow."""
    devices, total, multiple = cluster
    shares = divide(devices, total, multiple)
    assert sum(shares) == total
    for device, share in zip(devices, shares, strict=True):
        assert device.smallest <= share <= device.largest
        assert share % multiple == 0

    def longest(shares):
        return max(device.seconds(share) for device, share in zip(devices, shares, strict=True))

    best = min(
        longest(each)
        for each in product(
            *(
                range(device.smallest, int(min(device.largest, total)) + 1, multiple)
                for device in devices
            )
        )
        if sum(each) == total
    )
    unit_s = max(device.slowness * device.per_sample_s for device in devices) * multiple
    assert longest(shares) <= best + unit_s + 1e-9


INNER = ["bsp", "bsp", "asp", "ssp2", "lagtuner", "hybrid-2-1", "k-sync", "ringmaster-asp"]


@given(st.sampled_from(INNER), schedules())
def test_only_batch_sizes_differ_from_the_inner_paradigm(label, schedule):
    """Step times that do not depend on the batch: everything else is the same, and what a round of
    BSP computes is as much.
    """
    step_s, churn = schedule
    name, parameters = VARIANTS[label]
    inner = list(simulate(Machine(make(name, **parameters)), churn, step_s, 80))
    balanced = make("balanced", paradigm={"name": name, **parameters}, hysteresis=0.0)
    for (event, expected), (other, decisions) in zip(
        inner, simulate(Machine(balanced), churn, step_s, 80), strict=True
    ):
        assert (type(event), event.at) == (type(other), other.at)
        sizes = [each.batch_size for each in decisions if isinstance(each, Release)]
        assert all(size is None or size >= 1 for size in sizes)
        if label == "bsp" and any(isinstance(each, Apply) for each in decisions):
            assert sum(size or SAMPLES for size in sizes) == SAMPLES * len(sizes)
        assert [_unsized(each) for each in decisions if not isinstance(each, Note)] == [
            _unsized(each) for each in expected if not isinstance(each, Note)
        ]


def _unsized(decision):
    """Return a decision without what the sizes of batches change."""
    if isinstance(decision, Release):
        return replace(decision, batch_size=None)
    return replace(decision, samples_before=0) if isinstance(decision, Apply) else decision
