"""Dividing a batch among unequal devices, against a pencil."""

import pytest

from raysync.paradigms.batch_shares import DeviceSpeed, divide
from tests.builders.messages import naming


def test_a_batch_is_divided_by_the_speeds():
    """LB-BSP on CPUs: b_i = B v_i / sum v, here 64 x 3, 2, 2, 1 / 8."""
    assert divide([DeviceSpeed(1 / speed) for speed in (3, 2, 2, 1)], 64) == [24, 16, 16, 8]


def test_whole_samples_go_by_the_largest_remainder():
    """10 samples by 5 : 3 : 2.2 are 4.90, 2.94 and 2.16: remainders .90, .94 and .16."""
    assert divide([DeviceSpeed(1 / speed) for speed in (5, 3, 2.2)], 10) == [5, 3, 2]
    assert divide([DeviceSpeed(1.0)] * 3, 8) == [3, 3, 2], "ties in the order of the devices"


def test_fixed_parts_count():
    """1 + b / 10 and 2 + b / 10 are equal at 35 and 25 samples, 4.5 s; in transfer likewise."""
    fixed = [DeviceSpeed(1, fixed_s=seconds, per_sample_s=0.1) for seconds in (1, 2)]
    assert divide(fixed, 60) == [35, 25]
    travelling = [DeviceSpeed(1, transfer_s=seconds, per_sample_s=0.1) for seconds in (1, 2)]
    assert divide(travelling, 60) == [35, 25]
    # A device twice as slow in all it does: 2 (1 + b / 10) = 1 + (60 - b) / 10 at b = 50 / 3.
    slow = [
        DeviceSpeed(2, fixed_s=1, per_sample_s=0.1),
        DeviceSpeed(1, fixed_s=1, per_sample_s=0.1),
    ]
    assert divide(slow, 60) == [17, 43]


def test_memory_limits_a_share_and_the_others_take_the_rest():
    """By 6 : 1 : 1 the first would get 48 of 64, and holds 32; 16 each are left."""
    devices = [DeviceSpeed(1 / 6, largest=32), DeviceSpeed(1.0), DeviceSpeed(1.0)]
    assert divide(devices, 64) == [32, 16, 16]
    assert divide([DeviceSpeed(1.0, largest=20), DeviceSpeed(9.0, largest=20)], 40) == [20, 20]


def test_each_has_its_least():
    """The second device would get 64 / 101 of a sample, or of its four replicas one each."""
    assert divide([DeviceSpeed(0.01), DeviceSpeed(1.0)], 64) == [63, 1]
    assert divide([DeviceSpeed(0.01), DeviceSpeed(1.0, smallest=4)], 64) == [60, 4]


def test_what_a_floor_leaves_free_is_used():
    """The first needs 6 s for up to 6 samples; the second, at 1 s each, is best off with 4."""
    devices = [DeviceSpeed(1.0, floor_s=6), DeviceSpeed(1.0)]
    assert divide(devices, 10) == [6, 4]
    assert divide(devices, 20) == [10, 10], "the floor no longer matters"


def test_all_within_their_floors():
    """Up to 8 samples cost each nothing: 10 of these 24 are shared out, with at least 1 each."""
    assert divide([DeviceSpeed(1.0, floor_s=8)] * 3, 10) == [4, 3, 3]
    assert divide([DeviceSpeed(1.0, floor_s=8), DeviceSpeed(0.5, floor_s=8)], 2) == [1, 1]
    assert divide([DeviceSpeed(1.0, floor_s=1)] * 2, 2) == [1, 1], "nothing is free"


def test_multiples():
    devices = [DeviceSpeed(1 / speed, smallest=8) for speed in (3, 2, 2, 1)]
    assert divide(devices, 128, multiple=8) == [48, 32, 32, 16]
    assert divide(devices, 64, multiple=8) == [24, 16, 16, 8]
    assert divide(devices, 32, multiple=8) == [8, 8, 8, 8]


def test_an_impossible_total_is_a_bug_of_ours():
    with pytest.raises(AssertionError, match=naming("9 samples 2 8")):
        divide([DeviceSpeed(1.0, largest=4)] * 2, 9)
