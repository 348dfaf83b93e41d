"""The straggler detector: Sync-Switch, section IV-B2, and its guard for few workers."""

import pytest

from raysync.core.decisions import Note, SetTimer
from raysync.core.machine import Machine
from raysync.paradigms import make
from raysync.paradigms.stragglers import Detector
from raysync.paradigms.syncswitch import DETECT
from raysync.randomness import standard_normal
from raysync.testing.drive import Drive
from tests.builders.schedules import joins, of, simulate


def found(step_s, workers, first="asp", **parameters):
    """(when, kind, whom) of the notes in a run where nobody reacts: with two workers elastic
    suspends nobody, so greedy.
    """
    paradigm = make("sync-switch", first=first, then="asp", online="greedy", **parameters)
    names = [f"w-{n}#1" for n in range(workers)]
    events = simulate(Machine(paradigm, 10**9), joins(*names), step_s, 200)
    return [
        (event.at, note.kind, note.worker)
        for event, decisions in events
        for note in of(Note, decisions)
    ]


def watched(*workers, first="asp", then="bsp", online="greedy", **parameters):
    paradigm = make("sync-switch", first=first, then=then, online=online, **parameters)
    return Drive(paradigm, *workers, workload_samples=10**6)


def stands_in(drive):
    return drive.machine.paradigm.schedule.standing_in


def slow(factor, since=0, until=10**9):
    """The last worker's steps of those clocks take longer; the others' take 1 s."""
    return lambda worker, clock: factor if worker == "w-0#1" and since <= clock < until else 1.0


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("first", ["bsp", "asp"])
def test_a_worker_below_the_others_for_some_windows_in_a_row_is_a_straggler(workers, first):
    """ "a worker k is identified as a straggler if its training throughput over a sliding window
    S_k is lower than the difference between the cluster average and standard deviation S - sigma,
    for a number of consecutive windows"."""
    for windows in (1, 3):
        [(at, kind, worker), *_] = found(slow(2.0), workers, first=first, windows=windows)
        assert (kind, worker) == ("straggler", "w-0#1")
        assert 5 * windows <= at <= 10 * (windows + 1), "windows of five steps of the median worker"


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 16])
def test_equal_workers_are_none(workers):
    """Of two workers the slower is exactly at mean - sigma, of three the slowest is always below
    it: hence the margin.
    """
    assert found(lambda worker, clock: 1 + 0.1 * int(worker[2]), min(workers, 3)) == []
    assert (
        found(lambda worker, clock: 1 + 0.02 * standard_normal(7, "step", worker, clock), workers)
        == []
    )


@pytest.mark.parametrize(("factor", "is_one"), [(1.2, False), (1.3, True)])
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_it_must_be_slower_than_the_others_by_more_than_the_margin(workers, factor, is_one):
    """1 / 1.3 is below 1 - 0.2 of the others, 1 / 1.2 is not."""
    assert bool(found(slow(factor), workers)) is is_one


def test_from_four_workers_on_it_must_also_be_below_mean_minus_sigma():
    """Half of the cluster at half of the speed is at mean - sigma; a little less than half of it is
    below.
    """

    def step_s(slow_ones):
        return lambda worker, clock: 2.0 if worker in slow_ones else 1.0

    assert found(step_s({"w-0#1", "w-1#1", "w-2#1"}), 6) == []
    assert {worker for _, _, worker in found(step_s({"w-0#1", "w-1#1"}), 6)} == {"w-0#1", "w-1#1"}


def test_who_is_stuck_is_found_without_its_own_next_push():
    drive = watched("a#1", "b#1", first="bsp", then="asp", windows=2)
    drive.push("a#1", at=1.0)
    answers = [drive.push("b#1", at=1.0)]
    drive.push("a#1", at=2.0)
    while not stands_in(drive):
        answers.append(drive.tick(DETECT))
        assert drive.now < 60
    assert [note.worker for note in of(Note, answers[-1])] == ["b#1"]


def test_who_was_stuck_from_the_beginning_is_found_too():
    """Of a worker that never pushed the others' throughput is taken, until its step is longer."""
    drive = watched("a#1", "b#1", "c#1", first="bsp", then="asp")
    assert drive.machine.timers == {}
    assert SetTimer(DETECT, 6.0) in drive.push("a#1", at=1.0), "the first push starts the detector"
    drive.push("b#1", at=1.0)
    while not stands_in(drive):
        drive.tick(DETECT)
        assert drive.now < 60
    assert drive.machine.paradigm.detector.stragglers == ["c#1"]


def test_waiting_at_a_barrier_is_not_slow():
    """Pushes per active second: w-0 takes 1 s, and waits 1 s for the others in each round."""
    assert found(lambda worker, clock: 1.0 if worker == "w-0#1" else 2.0, 4, first="bsp") == []


def test_a_slow_link_is_slow():
    """From release to push: `busy_s` is 0 in these pushes."""
    drive = watched("a#1", "b#1", windows=1)
    for at in range(1, 6):
        drive.push("a#1", at=float(at))
    drive.push("b#1", at=5.0)
    drive.tick(DETECT)
    assert stands_in(drive)


def test_a_straggler_has_recovered_after_one_window_at_full_speed():
    notes = found(slow(4.0, since=10, until=14), 4)
    assert [(kind, worker) for _, kind, worker in notes] == [
        ("straggler", "w-0#1"),
        ("recovered", "w-0#1"),
    ]
    assert notes[1][0] < 10 + 4 * 4 + 3 * 5


def test_a_short_disturbance_is_no_straggler():
    assert found(slow(4.0, since=10, until=11), 4) == []


def test_steps_of_no_length_start_nothing():
    """Nor do they divide by zero; the timer is set by the first step that takes time."""
    drive = watched("a#1", "b#1", "c#1", online="elastic", window=1, windows=1)
    for worker in ("a#1", "b#1", "c#1"):
        drive.push(worker)
    assert drive.machine.timers == {}
    drive.push("a#1", at=1.0)
    drive.push("a#1")
    assert drive.machine.timers == {DETECT: 2.0}
    drive.tick(DETECT)
    assert list(drive.machine.timers) == [DETECT]
    assert drive.machine.timers[DETECT] > drive.now


def test_when_nothing_is_known_any_more_the_next_push_starts_the_detector_again():
    drive = watched("a#1", "b#1")
    drive.push("a#1", at=1.0)
    drive.leave("a#1")
    assert of(SetTimer, drive.tick(DETECT)) == []
    assert drive.machine.timers == {}
    drive.push("b#1", at=9.0)
    assert drive.machine.timers == {DETECT: 9.0 + 5 * 9.0}


def test_a_window_is_some_steps_of_the_median_worker_long():
    """The first one: of its first push. Then a and b have at most made 2 steps in 6 s, and c one in
    4 s.
    """
    drive = watched("a#1", "b#1", "c#1")
    for worker, at in (("a#1", 1.0), ("b#1", 2.0), ("c#1", 4.0)):
        drive.push(worker, at=at)
    drive.tick(DETECT)
    assert drive.now == 1.0 + 5 * 1.0
    assert drive.machine.timers[DETECT] == pytest.approx(6.0 + 5 * 3.0)


def test_who_did_nothing_keeps_its_throughput():
    detector = Detector(window=5, windows=1, margin=0.2)
    drive = Drive(make("asp"), "a#1", "b#1")
    for worker in "ab":
        detector.pushed(f"{worker}#1", 1.0 if worker == "a" else 1.5)
    for notes in (1, 0):
        assert len(detector.close_window(drive.roster)) == notes
        assert detector.stragglers == ["b#1"]
    assert detector.rates == {"a#1": 1.0, "b#1": 1 / 1.5}
    assert detector.slow == {"b#1": 2}
    drive.leave("b#1")
    detector.forget("b#1")
    assert detector.close_window(drive.roster) == detector.stragglers == []


def test_the_slowest_comes_first():
    detector = Detector(window=5, windows=1, margin=0.2)
    roster = Drive(make("asp"), *(f"w-{n}#1" for n in range(8))).roster
    for n in range(8):
        detector.pushed(f"w-{n}#1", {2: 3.0, 5: 4.0}.get(n, 1.0))
    assert [note.worker for note in detector.close_window(roster)] == ["w-5#1", "w-2#1"]
