"""ASP, as the papers here use it."""

from raysync.core.decisions import Apply, Release
from raysync.core.staleness import staleness
from raysync.paradigms import make
from raysync.testing.drive import SAMPLES, Drive


def test_no_worker_ever_waits():
    """ "ASP eliminates waiting entirely" (LagTuner, section 1)."""
    drive = Drive(make("asp"), "fast#1", "slow#1")
    for clock in range(50):
        assert drive.push("fast#1") == [
            Apply((("fast#1", clock),), version=clock + 1, samples_before=clock * SAMPLES),
            Release("fast#1", clock + 1, version=clock + 1, lead=clock + 1),
        ]
    assert drive.roster.lead("fast#1") == 50


def test_a_leaver_changes_nothing_for_the_others():
    drive = Drive(make("asp"), "a#1", "b#1")
    assert drive.leave("a#1") == []
    assert list(drive.roster.computing) == ["b#1"]


def test_of_n_workers_in_turn_each_misses_the_updates_of_the_others():
    drive = Drive(make("asp"), "a#1", "b#1", "c#1")
    for turn, worker in enumerate(["a#1", "b#1", "c#1"] * 3):
        base = drive.roster.live[worker].version
        update = drive.push(worker)[0]
        assert staleness(update.version, base) == min(turn, 2)
