"""Quorum and grace period (arXiv 2401.09135, 2604.21428)."""

import pytest

from raysync.core.decisions import Apply, Release, SetTimer
from raysync.core.machine import Machine
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.paradigms.quorum import GRACE
from raysync.paradigms.syncswitch import DETECT
from raysync.testing.drive import Drive
from tests.builders.messages import Telling, naming
from tests.builders.schedules import applied, dropped, holds, of, released

WORKERS = ("a#1", "b#1", "c#1")
LATE = "late: 1 update since its weights"


def set_timers(decisions):
    return [each.at for each in of(SetTimer, decisions)]


@pytest.mark.parametrize("late", ["next", "drop"])
def test_an_update_takes_what_has_come_by_the_end_of_the_grace_period(late):
    """It begins with the k-th push."""
    drive = Drive(make("quorum", k=2, grace_s=0.5, late=late), *WORKERS, "d#1")
    answer = drive.push("c#1", 1.0)
    assert holds(answer) == {"c#1": Telling("2 1 computing: a#1 b#1 d#1")}
    assert not set_timers(answer)
    answer = drive.push("a#1", 2.0)
    assert set_timers(answer) == [2.5]
    assert holds(answer) == {"a#1": Telling("0.5 2 computing: b#1 d#1")}
    answer = drive.push("b#1", 2.25)
    assert not set_timers(answer), "it is not prolonged"
    assert holds(answer) == {"b#1": Telling("0.5 3 computing: d#1")}
    answer = drive.tick(GRACE)
    assert drive.now == 2.5
    assert applied(answer) == [(("c#1", 0), ("a#1", 0), ("b#1", 0))]
    assert released(answer) == ["c#1", "a#1", "b#1"], "together, behind the update"
    assert isinstance(answer[0], Apply)
    assert set_timers(drive.push("a#1", 3.0)) == []
    assert set_timers(drive.push("b#1", 3.0)) == [3.5], "the next one"


def test_without_a_grace_period_the_update_is_in_the_same_answer():
    drive = Drive(make("quorum", k=2), *WORKERS)
    drive.push("c#1")
    answer = drive.push("a#1")
    assert applied(answer) == [(("c#1", 0), ("a#1", 0))]
    assert released(answer) == ["c#1", "a#1"], "b still computes"
    assert not drive.machine.timers


def test_a_late_push_takes_part_in_the_next_update():
    drive = Drive(make("quorum", k=2), *WORKERS)
    drive.push("a#1")
    drive.push("b#1")
    assert holds(drive.push("c#1")) == {"c#1": Telling("2 1 computing: a#1 b#1")}
    answer = drive.push("a#1")
    assert applied(answer) == [(("c#1", 0), ("a#1", 1))], "it counts towards its k"
    assert released(answer) == ["c#1", "a#1"]


def test_or_it_is_dropped_and_its_worker_released_on_the_newest_weights():
    drive = Drive(make("quorum", k=2, late="drop"), *WORKERS)
    drive.push("a#1")
    drive.push("b#1")
    [drop, release] = drive.push("c#1")
    assert (drop.push, drop.reason) == (("c#1", 0), "late")
    assert release == Release("c#1", clock=1, version=1, lead=0)
    drive.push("c#1")
    assert applied(drive.push("a#1")) == [(("c#1", 1), ("a#1", 1))]


def test_nobody_waits_for_the_end_when_all_have_pushed():
    drive = Drive(make("quorum", k=1, grace_s=5.0), *WORKERS)
    assert set_timers(drive.push("a#1", 1.0)) == [6.0]
    drive.push("b#1", 1.5)
    answer = drive.push("c#1", 2.0)
    assert set_timers(answer) == [None]
    assert [len(pushes) for pushes in applied(answer)] == [3]
    assert not drive.machine.timers
    assert set_timers(drive.push("a#1", 3.0)) == [8.0]


def test_all_of_fewer_members_are_waited_for_without_a_grace_period():
    drive = Drive(make("quorum", k=3, grace_s=5.0), "a#1", "b#1")
    assert not set_timers(drive.push("a#1"))
    assert applied(drive.push("b#1")) == [(("a#1", 0), ("b#1", 0))]
    assert not drive.machine.timers


def test_it_goes_so_in_a_grace_period_and_not_before_the_last():
    drive = Drive(make("quorum", k=1, grace_s=5.0), *WORKERS)
    drive.push("a#1", 1.0)
    assert drive.leave("b#1") == []
    answer = drive.leave("c#1")
    assert set_timers(answer) == [None]
    assert applied(answer) == [(("a#1", 0),)]


def test_a_leaver_may_complete_the_quorum_and_begin_the_grace_period():
    drive = Drive(make("quorum", k=3, grace_s=5.0), *WORKERS, "d#1", "e#1")
    drive.push("a#1")
    drive.push("b#1")
    assert drive.leave("e#1") == []
    assert drive.leave("d#1", 2.0) == [], "two of three"
    drive.join("d#2")
    assert set_timers(drive.push("c#1", 3.0)) == [8.0]
    drive = Drive(make("quorum", k=2, grace_s=5.0, late="drop"), *WORKERS)
    drive.push("a#1")
    drive.leave("a#1")
    assert not set_timers(drive.push("b#1", 1.0)), "what a left counts beyond k"
    assert applied(drive.push("c#1", 1.5)) == [(("a#1", 0), ("b#1", 0), ("c#1", 0))]


def test_a_grace_period_ends_at_its_time_though_its_workers_have_left():
    drive = Drive(make("quorum", k=2, grace_s=5.0), *WORKERS)
    drive.push("a#1", 1.0)
    drive.push("b#1", 1.0)
    assert drive.leave("a#1", 2.0) == []
    assert drive.leave("b#1", 2.0) == []
    assert applied(drive.tick(GRACE)) == [(("a#1", 0), ("b#1", 0))]
    assert drive.now == 6.0


def test_a_dropped_push_takes_its_grace_period_with_it():
    """Sync-Switch drops the push of a straggler that has begun it, and goes on without it."""
    quorum = {"name": "quorum", "k": 1, "grace_s": 0.5}
    switch = make("sync-switch", first=quorum, online="elastic", window=1, windows=2)
    drive = Drive(switch, *WORKERS)
    drive.push("a#1", 1.0)
    drive.push("b#1", 1.0)
    drive.tick(GRACE)
    drive.tick(DETECT)
    assert set_timers(drive.push("c#1", 2.75)) == [3.25]
    answer = drive.tick(DETECT)
    assert dropped(answer) == [("c#1", 0)]
    assert None in set_timers(answer)
    assert GRACE not in drive.machine.timers
    assert set_timers(drive.push("a#1", 4.0)) == [4.5], "a new one"


def test_a_restored_machine_goes_on():
    parameters = {"k": 1, "grace_s": 1.0}
    drive = Drive(make("quorum", **parameters), *WORKERS)
    drive.push("a#1", 1.0)
    restored = Machine.restore(drive.machine.snapshot(), make("quorum", **parameters))
    assert restored.timers == {GRACE: 2.0}
    assert restored.paradigm.in_grace


@pytest.mark.parametrize(
    ("k", "workers", "says"), [(3, 3, ""), (3, 2, "k: 3 workers of 2; allowed: 1 to 2")]
)
def test_more_than_there_are_is_refused(k, workers, says):
    assert make("quorum", k=k).infeasible_reason(workers) == says


@pytest.mark.parametrize(
    ("parameters", "says"),
    [({"k": 0}, "k 1"), ({"grace_s": -1}, "grace_s 0"), ({"late": "x"}, "late 'next' 'drop'")],
)
def test_what_is_wrong_is_named(parameters, says):
    with pytest.raises(ConfigError, match=naming(says)):
        make("quorum", **parameters)
