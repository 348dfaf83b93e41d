"""SSP: Ho et al. 2013, and what LagTuner says of it."""

from raysync.paradigms import make
from raysync.testing.drive import Drive
from tests.builders.messages import Telling
from tests.builders.schedules import applied, holds, released


def test_fast_workers_may_proceed_a_bounded_distance_ahead():
    """ "permitting bounded staleness through a user-specified threshold that limits how far ahead
    fast workers can proceed" (LagTuner, section 1): released while the lead is <= s."""
    drive = Drive(make("ssp", staleness=2), "fast#1", "slow#1")
    assert [released(drive.push("fast#1")) for _ in range(2)] == [["fast#1"], ["fast#1"]]
    answer = drive.push("fast#1")
    assert applied(answer) == [(("fast#1", 2),)], (
        "a push is applied at once, whether or not its worker goes on"
    )
    assert holds(answer) == {"fast#1": Telling("3 (slow#1) 2")}


def test_the_gap_of_completed_pushes_reaches_s_plus_1_for_a_held_worker():
    """Convention of Ho et al.: the bound is on iterations that are started."""
    drive = Drive(make("ssp", staleness=2), "fast#1", "slow#1")
    while "fast#1" in drive.roster.computing:
        drive.push("fast#1")
    assert drive.roster.lead("fast#1") == 3


def test_the_held_worker_is_released_by_the_push_of_the_slowest():
    drive = Drive(make("ssp", staleness=0), "a#1", "b#1", "c#1")
    drive.push("b#1")
    drive.push("a#1")
    assert released(drive.push("c#1")) == ["b#1", "a#1", "c#1"], "in order of arrival"


def test_the_held_worker_is_released_when_the_slowest_leaves():
    drive = Drive(make("ssp", staleness=0), "a#1", "b#1")
    drive.push("a#1")
    assert released(drive.leave("b#1")) == ["a#1"]
