"""The machine's contract: legality, stamps, timers, rebasing, snapshots."""

from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from typing import ClassVar, get_args

import pytest

from raysync.core.decisions import (
    Apply,
    Decision,
    Drop,
    Hold,
    Note,
    Release,
    Restore,
    SetTimer,
    Suspend,
    Switch,
)
from raysync.core.events import Joined, Left, Pushed, TimerFired
from raysync.core.legality import CHECKS
from raysync.core.machine import Machine, line_in_paradigm
from raysync.core.paradigm import Paradigm
from raysync.core.roster import EXECUTE
from raysync.core.structs import DEEPEST
from raysync.errors import IllegalDecision, ProtocolViolation
from raysync.paradigms import make
from raysync.paradigms.bsp import BSP
from raysync.randomness import draw
from raysync.testing.drive import SAMPLES, Drive
from tests.builders.messages import naming
from tests.builders.schedules import dropped, holds, released


@dataclass
class Scripted(Paradigm):
    """Answers each push with the next item of a list; on_join is the default."""

    name: ClassVar[str] = "scripted"
    answers: list = field(default_factory=list)

    def on_push(self, roster, push):
        return self.answers.pop(0)

    def on_leave(self, roster, worker):
        return []

    def on_switch(self, roster):
        return []

    def explain(self, roster, worker):
        return "the script says so"


@dataclass
class Timed(Scripted):
    """Releases everybody when its timer fires."""

    name: ClassVar[str] = "timed"

    def on_timer(self, roster, key):
        return [Release(worker) for worker in roster.held]


def pushed(worker="a#1", **fields):
    plain = {"at": 1.0, "clock": 0, "base": 0, "samples": SAMPLES, "busy_s": 0.5}
    return Pushed(worker=worker, **plain | fields)


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (pushed(at=0.5), "time 1.0"),
        (pushed(at=nan), "time went"),
        (pushed(at=inf), "time went"),
        (pushed(worker="stranger#1"), "in flight"),
        (pushed(clock=1), "iteration 1"),
        (pushed(worker="held#1"), "iteration 0"),
        (pushed(base=1), "versions 0 0"),
        (pushed(base=-1), "versions 0 0"),
        (pushed(samples=0), "samples"),
        (pushed(steps=0), "steps"),
        (pushed(busy_s=-1.0), "finite"),
        (pushed(busy_s=nan), "finite"),
        (pushed(computed_at=1.5), "computed"),
        (pushed(computed_at=-1.0), "computed"),
        (pushed(computed_at=nan), "computed"),
        (pushed(worker="gone#1", clock=1), "no iteration 1"),
        (Joined(at=1.0, worker="a#1"), "used before"),
        (Joined(at=1.0, worker="gone#1"), "used before"),
        (Left(at=1.0, worker="gone#1"), "not a member"),
        (Left(at=1.0, worker="stranger#1"), "not a member"),
        (TimerFired(at=1.0, key="never set"), "no timer"),
        (TimerFired(at=1.0, key="later"), "9.0"),
    ],
)
def test_an_illegal_event_raises_and_changes_nothing(event, says):
    drive = Drive(Scripted([[SetTimer("later", 9.0)]]), "a#1", "held#1", "gone#1")
    drive.push("held#1")
    drive.leave("gone#1", at=1.0)
    before = drive.machine.snapshot()
    with pytest.raises(ProtocolViolation, match=naming(says)):
        drive.machine.handle(event)
    assert drive.machine.snapshot() == before


def test_a_push_in_flight_of_a_leaver_is_dropped_once():
    drive = Drive(make("asp"), "a#1", "b#1")
    drive.leave("a#1")
    assert drive.push("a#1", clock=0, base=0) == [
        Drop(("a#1", 0), why="its worker had left before it arrived", reason="left")
    ]
    with pytest.raises(ProtocolViolation):
        drive.push("a#1", clock=0, base=0)
    assert (drive.roster.received, drive.roster.dropped) == (1, 1)


def test_a_leaver_that_was_held_has_nothing_in_flight():
    drive = Drive(make("bsp"), "a#1", "b#1")
    drive.push("a#1")
    drive.leave("a#1")
    with pytest.raises(ProtocolViolation):
        drive.push("a#1", clock=0, base=0)


def test_releases_are_stamped_with_the_version_that_stands_before_them():
    drive = Drive(
        Scripted([[Release("a#1"), Apply((("a#1", 0),))], [Apply((("a#1", 1),)), Release("a#1")]]),
        "a#1",
    )
    assert drive.push("a#1") == [
        Release("a#1", clock=1, version=0, lead=0),
        Apply((("a#1", 0),), version=1, samples_before=0),
    ]
    assert drive.push("a#1", base=1) == [
        Apply((("a#1", 1),), version=2, samples_before=SAMPLES),
        Release("a#1", clock=2, version=2, lead=0),
    ]


def test_a_worker_may_read_a_newer_model_than_it_must():
    drive = Drive(make("asp"), "a#1", "b#1")
    drive.push("a#1")
    drive.push("b#1", base=1)
    assert drive.roster.members["b#1"].base == 1


def test_without_a_pull_the_next_push_has_the_base_of_the_last():
    drive = Drive(Scripted([[Apply((("a#1", 0),)), Release("a#1", pull=False)]]), "a#1")
    assert drive.push("a#1")[-1] == Release("a#1", clock=1, version=0, pull=False, lead=0)
    with pytest.raises(ProtocolViolation, match=naming("versions 0 0")):
        drive.push("a#1", base=1)


def test_the_first_release_of_a_worker_pulls():
    class Careless(Scripted):
        def on_join(self, roster, worker):
            return [Release(worker, pull=False)]

    with pytest.raises(IllegalDecision, match="never pulled"):
        Drive(Careless(), "a#1")


def test_batch_sizes_and_phases_pass_through():
    drive = Drive(
        Scripted([[Apply((("a#1", 0),), phase="late"), Release("a#1", batch_size=64)]]), "a#1"
    )
    assert drive.push("a#1") == [
        Apply((("a#1", 0),), version=1, samples_before=0, phase="late"),
        Release("a#1", clock=1, version=1, batch_size=64, lead=0),
    ]


def test_weights_and_steps_pass_through():
    pushes = (("a#1", 0), ("b#1", 0))
    answer = [Apply(pushes, weights=(0, 0.5)), Release("a#1", steps=3), Release("b#1")]
    drive = Drive(Scripted([[], answer]), "a#1", "b#1")
    drive.push("a#1")
    assert drive.push("b#1") == [
        Apply(pushes, version=1, samples_before=0, weights=(0, 0.5)),
        Release("a#1", clock=1, version=1, steps=3, lead=0),
        Release("b#1", clock=1, version=1, lead=0),
    ]


def test_a_push_has_at_most_the_steps_that_its_worker_was_released_for():
    drive = Drive(Scripted([[Release("a#1", steps=3)], [Release("a#1")], []]), "a#1", "b#1")
    drive.push("a#1")
    for steps in (4, 9):
        with pytest.raises(ProtocolViolation, match=naming(f"3 {steps}")):
            drive.machine.handle(pushed(clock=1, steps=steps))
    drive.machine.handle(pushed(clock=1, steps=2))  # less was left of the workload
    drive.machine.handle(pushed(clock=2, steps=7))  # of a release that names none
    assert drive.roster.buffered["a#1", 2].steps == 7


def test_batches_are_counted_by_steps():
    """A newcomer begins with the batch that the slowest is at, which clocks do not tell."""
    drive = Drive(make("local", paradigm="asp", steps=3), "a#1", "b#1")
    batches = lambda worker: drive.roster.live[worker].batches  # noqa: E731
    for worker in ("a#1", "a#1", "b#1"):
        drive.push(worker)
    assert (batches("a#1"), batches("b#1")) == (6, 3)
    drive.join("c#1")
    assert (drive.roster.clock("c#1"), batches("c#1")) == (1, 3)
    drive.leave("b#1")
    drive.leave("c#1")
    drive.leave("a#1")
    drive.join("a#2")
    assert (drive.roster.clock("a#2"), batches("a#2")) == (2, 6), "where the last one was"
    restored = Machine.restore(drive.machine.snapshot(), drive.machine.paradigm)
    assert restored.roster.members["a#2"] == drive.roster.members["a#2"]


def test_a_snapshot_has_the_steps_of_a_push_and_of_a_release():
    drive = Drive(make("local", steps=3), "a#1", "b#1")
    drive.push("a#1")
    restored = Machine.restore(drive.machine.snapshot(), make("local", steps=3))
    assert restored.snapshot() == drive.machine.snapshot()
    assert restored.roster.buffered["a#1", 0].steps == 3
    with pytest.raises(ProtocolViolation, match=naming("3 4")):
        restored.handle(pushed(worker="b#1", steps=4))


def test_stamps_are_the_machines_also_on_decisions_that_have_some():
    """As those of a paradigm that returns an object that it has returned before; the object itself
    stays as it was answered.
    """
    kept = Release("a#1")
    applies = [Apply((("a#1", clock),), version=7, samples_before=9) for clock in range(2)]
    drive = Drive(Scripted([[apply, kept] for apply in applies]), "a#1")
    answers = [drive.push("a#1") for _ in applies]
    assert answers == [
        [
            Apply((("a#1", clock),), version=clock + 1, samples_before=clock * SAMPLES),
            Release("a#1", clock=clock + 1, version=clock + 1, lead=0),
        ]
        for clock in range(2)
    ]


def test_every_decision_is_checked_and_carried_out():
    assert set(CHECKS) == set(EXECUTE) == set(get_args(Decision))


def test_a_paradigm_may_drop():
    drive = Drive(Scripted([[Drop(("a#1", 0), why="too old"), Release("a#1")]]), "a#1")
    assert dropped(drive.push("a#1")) == [("a#1", 0)]
    assert (drive.roster.dropped, drive.roster.applied, drive.roster.buffered) == (1, 0, {})


GIVEN = ("a#1", 0)
"""The push that the machine has just buffered, of a worker that is held."""


@pytest.mark.parametrize(
    ("decisions", "says"),
    [
        (None, "returns None; it must return a list"),
        ([Release("a#1"), None], "returns None among its decisions"),
        ([], r"leaves a deadlock: every worker is held \(a#1\)"),
        ([Hold("a#1", why="mine")], "a Hold, which only the machine issues"),
        (
            [Release("a#1"), Release("a#1")],
            "releases 'a#1', which is released already and computes",
        ),
        ([Release("gone#1")], "releases 'gone#1', which has left"),
        ([Release("fast-0")], "releases 'fast-0', which is no member; the members are 'a#1'"),
        ([Release(["a#1"])], r"releases \['a#1'\], which is no member"),
        ([Release("a#1", batch_size=0)], "batch_size=0"),
        ([Release("a#1", batch_size=1.5)], "batch_size=1.5"),
        ([Release("a#1", steps=0)], "steps=0"),
        ([Release("a#1", steps=1.5)], "steps=1.5"),
        ([Apply(())], "applies no push"),
        ([Apply((GIVEN,), weights=(1, 2))], r"weighs 1 pushes by \(1, 2\)"),
        ([Apply((GIVEN,), weights=[1])], r"weighs 1 pushes by \[1\]"),
        ([Apply((GIVEN,), weights=(-1,))], r"weighs pushes by \(-1,\)"),
        ([Apply((GIVEN,), weights=(inf,))], r"weighs pushes by \(inf,\)"),
        ([Apply((GIVEN,), weights=(1e13,))], r"weighs pushes by \(1[^)]*,\)"),
        ([Apply((GIVEN,), weights=(nan,))], r"weighs pushes by \(nan,\)"),
        ([Apply((GIVEN,), weights=("1",))], r"weighs pushes by \('1',\)"),
        ([Apply((GIVEN,), weights=(0,))], r"weighs pushes by \(0,\)"),
        ([Apply([GIVEN])], "the pushes of an Apply are a tuple"),
        (
            [Apply((("nobody", 3),))],
            r"applies the push \('nobody', 3\), which is not buffered; 1 pushes are: \('a#1', 0\)",
        ),
        ([Apply((["a#1", 0],))], r"applies the push \['a#1', 0\], which is not buffered"),
        ([Apply((GIVEN, GIVEN))], "applies a push twice"),
        (
            [Apply((GIVEN,)), Drop(GIVEN, why="again")],
            r"drops the push \('a#1', 0\), which is not buffered; 0 pushes are",
        ),
        ([SetTimer("t", inf)], "sets the timer 't' to inf"),
        ([SetTimer(3, 1.0)], "sets the timer 3"),
        ([Note("seen", "a#1", {"who": {"a#1"}})], "notes 'who' as set"),
        ([Note("seen", "a#1", {1: 2})], "a value under 1, which is no str"),
        ([Note("seen", "a#1", {"who": [{"a": ("b",)}]})], "notes 'who' as list"),
    ],
)
def test_an_illegal_decision_names_the_method_that_made_it(decisions, says):
    drive = Drive(Scripted([decisions]), "a#1", "gone#1")
    drive.leave("gone#1")
    with pytest.raises(IllegalDecision, match=rf"test_machine.py:\d+: Scripted.on_push .*{says}"):
        drive.push("a#1")


@pytest.mark.parametrize("values", [{}, {"a": None, "b": [1, 2.5, {"c": True}], "d": "text"}])
def test_what_json_gives_back_may_be_noted(values):
    drive = Drive(Scripted([[Note("seen", "a#1", values), Release("a#1")]]), "a#1")
    assert drive.push("a#1")[0].values == values


def test_a_state_that_cannot_be_written_down_is_found_at_once():
    @dataclass
    class Forgetful(Scripted):
        seen: object = field(default_factory=list, init=False)

        def on_push(self, roster, push):
            self.seen = {push}
            return [Release(push[0])]

    drive = Drive(Forgetful(), "a#1")
    with pytest.raises(IllegalDecision, match=naming("'seen' set: {('a#1' 0)}")):
        drive.push("a#1")


def test_a_reason_to_wait_is_text():
    class Silent(Timed):
        def explain(self, roster, worker):
            return None

    drive = Drive(Silent([[SetTimer("t", 9.0)]]), "a#1")
    with pytest.raises(IllegalDecision, match=naming("Silent.explain str 'a#1'")):
        drive.push("a#1")


def test_a_switch_needs_on_switch():
    class Switching(Scripted):
        on_switch = Paradigm.on_switch

    drive = Drive(Switching([[Switch("other", why="test")]]), "a#1")
    with pytest.raises(IllegalDecision, match=naming("on_switch")):
        drive.push("a#1")


def test_a_joiner_that_is_not_released_gets_a_hold():
    class Shy(Timed):
        def on_join(self, roster, worker):
            return [SetTimer("soon", roster.now + 1.0)]

    drive = Drive(Shy())
    assert holds(drive.join("a#1")) == {"a#1": "the script says so"}


def test_timers_are_set_replaced_cancelled_and_fire_once():
    replaced = [
        SetTimer("t", 5.0),
        SetTimer("t", 7.0),
        SetTimer("u", 6.0),
        SetTimer("u", None),
        SetTimer("never", None),
    ]
    drive = Drive(Timed([[SetTimer("t", 5.0)], replaced]), "a#1")
    drive.push("a#1")
    assert released(drive.machine.handle(TimerFired(at=5.0, key="t"))) == ["a#1"]
    with pytest.raises(ProtocolViolation):
        drive.machine.handle(TimerFired(at=5.0, key="t"))
    drive.push("a#1", at=5.5)
    assert drive.machine.timers == {"t": 7.0}
    with pytest.raises(ProtocolViolation, match="is set for 7"):
        drive.machine.handle(TimerFired(at=6.0, key="t"))


def test_a_paradigm_that_sets_a_timer_handles_it():
    drive = Drive(Scripted([[SetTimer("t", 1.0)]]), "a#1")
    drive.push("a#1")
    with pytest.raises(IllegalDecision, match=naming("'t' on_timer")):
        drive.machine.handle(TimerFired(at=1.0, key="t"))


def test_a_switch_makes_every_lead_0_and_leaves_clocks_alone():
    answers = [
        [Release("a#1")],
        [Release("a#1")],
        [Note("kept", "a#1"), Switch("other", why="test")],
        [Release("b#1")],
    ]
    drive = Drive(Scripted(answers), "a#1", "b#1")
    for _ in range(3):
        drive.push("a#1")
    roster = drive.roster
    assert (roster.lead("a#1"), roster.lead("b#1")) == (0, 0)
    assert (roster.clock("a#1"), roster.clock("b#1")) == (3, 0)
    assert roster.slow == roster.fast
    assert roster.held_within(0) == ["a#1"]
    drive.push("b#1")
    assert (roster.lead("a#1"), roster.lead("b#1")) == (0, 1)
    drive.join("c#1")
    assert roster.clock("c#1") == 3, (
        "a newcomer starts where the slowest is: a has made no push since the switch"
    )
    drive.machine.roster.execute(Switch("asp", "again"))
    assert (
        Machine.restore(drive.machine.snapshot(), drive.machine.paradigm).snapshot()
        == drive.machine.snapshot()
    )


def test_rebasing_nobody_is_harmless():
    drive = Drive(Scripted())
    drive.roster.execute(Switch("asp", "nobody is there"))
    assert released(drive.join("a#1")) == ["a#1"]


def test_progress_is_samples_applied_over_the_workload():
    drive = Drive(make("asp"), "a#1", workload_samples=4 * SAMPLES)
    assert drive.roster.progress == 0
    drive.push("a#1")
    assert drive.roster.progress == 0.25
    assert Drive(drive.machine.paradigm).roster.progress is None


def test_when_all_have_left_a_newcomer_goes_on_where_the_last_one_was():
    drive = Drive(make("ssp"), "a#1")
    for _ in range(4):
        drive.push("a#1")
    drive.leave("a#1")
    drive.join("a#2")
    assert (drive.roster.clock("a#2"), drive.roster.lead("a#2")) == (4, 0)


def test_the_fastest_may_leave():
    drive = Drive(make("asp"), "a#1", "b#1", "c#1")
    for _ in range(9):
        drive.push("a#1")
    drive.push("b#1")
    drive.leave("a#1")
    assert drive.roster.is_fastest("b#1")
    assert not drive.roster.is_fastest("c#1")


def test_the_slowest_worker_is_the_first_id_among_the_smallest_clocks():
    drive = Drive(make("asp"), "c#1", "a#1", "b#1")
    assert drive.roster.slowest_worker() == "a#1"
    drive.push("a#1")
    assert drive.roster.slowest_worker() == "b#1"
    drive.join("B#1")
    assert drive.roster.slowest_worker() == "B#1"
    drive.leave("B#1")
    drive.leave("b#1")
    assert drive.roster.slowest_worker() == "c#1"
    drive.push("c#1")
    assert drive.roster.slowest_worker() == "a#1"
    drive.leave("a#1")
    drive.leave("c#1")
    assert drive.roster.slowest_worker() is None
    assert Drive(make("asp")).roster.slowest_worker() is None


# ---- suspension ----

AWAY = Suspend("b#1", "for a test")


def suspended(*answers, workers=("a#1", "b#1")):
    """The first worker has pushed, and the answer was to suspend b, which computes."""
    drive = Drive(Scripted([[AWAY, Release("a#1")], *answers]), *workers)
    assert drive.push("a#1") == [AWAY, Release("a#1", clock=1, version=0, lead=len(workers) - 2)]
    return drive


def test_a_suspended_worker_is_live_but_no_member():
    drive = suspended()
    roster = drive.roster
    assert list(roster.live) == ["a#1", "b#1"]
    assert list(roster.members) == list(roster.computing) == ["a#1"]
    assert (roster.suspended, list(roster.outdated)) == ({"b#1": "for a test"}, ["b#1"])
    assert roster.slowest_worker() == "a#1"
    assert (roster.slow, roster.fast) == (1, 1)


def test_to_the_rule_a_suspended_worker_has_left():
    """BSP would wait for b; and what its leaving brings about comes after all of the answer."""

    @dataclass
    class Impatient(BSP):
        def on_push(self, roster, push):
            return (
                [Suspend("b#1", "as it is slow"), Note("seen", push[0])]
                if "b#1" in roster.computing
                else []
            )

    drive = Drive(Impatient(), "a#1", "b#1")
    answer = drive.push("a#1")
    assert [type(each) for each in answer] == [Suspend, Note, Apply, Release]
    assert drive.leave("b#1") == [], "it had left already, as far as the rule knows"
    assert drive.push("b#1", clock=0, base=0) == [
        Drop(("b#1", 0), why="its worker had left before it arrived", reason="left")
    ]


def test_the_push_of_a_suspended_worker_is_dropped_and_it_is_told_why_it_waits():
    drive = suspended()
    assert drive.push("b#1") == [
        Drop(("b#1", 0), why="its worker was suspended for a test", reason="suspended"),
        Hold("b#1", "the script says so"),
    ]
    assert not drive.roster.outdated
    with pytest.raises(ProtocolViolation, match=naming("iteration 1")):
        drive.push("b#1")


def test_a_held_worker_is_restored_as_a_held_member():
    drive = suspended([Restore("b#1"), Release("b#1"), Release("a#1")])
    drive.push("b#1")
    assert drive.push("a#1")[:2] == [Restore("b#1"), Release("b#1", clock=1, version=0, lead=0)]
    assert drive.roster.lead("b#1") == 0
    assert drive.roster.suspended == {}


def test_one_that_computes_is_restored_as_a_newcomer_once_its_old_step_is_over():
    drive = suspended([Restore("b#1"), Release("a#1")])
    drive.push("a#1")
    assert list(drive.roster.members) == ["a#1"]
    assert drive.push("b#1") == [
        Drop(("b#1", 0), why="begun before its worker was restored", reason="restored"),
        Release("b#1", clock=1, version=0, lead=0),
    ]
    assert drive.roster.lead("b#1") == 0
    assert drive.roster.telemetry("b#1").pushed_at is None
    assert drive.roster.members["b#1"].batches == 1, "of the step that is over"


def test_a_held_worker_may_be_suspended_and_leave():
    drive = suspended([], [AWAY], workers=("a#1", "b#1", "c#1"))
    drive.push("b#1")
    drive.push("c#1")
    assert drive.leave("b#1") == []
    with pytest.raises(ProtocolViolation, match="no iteration"):
        drive.push("b#1", clock=1, base=0)


def test_restored_workers_come_in_order_of_arrival_again_after_a_switch():
    answers = [[], [Release("c#1")], [Restore("b#1"), Switch("other", why="test"), Release("c#1")]]
    drive = suspended(*answers, workers=("a#1", "b#1", "c#1"))
    drive.push("b#1")
    drive.push("a#1")
    drive.push("c#1")
    drive.push("c#1")
    assert list(drive.roster.members) == ["a#1", "b#1", "c#1"]
    assert list(drive.roster.held) == ["b#1", "a#1"]


def test_a_newcomer_starts_no_further_than_a_suspended_worker():
    drive = suspended([Release("a#1")], [Release("a#1")])
    drive.push("a#1")
    drive.push("a#1")
    drive.join("c#1")
    assert (drive.roster.clock("a#1"), drive.roster.clock("c#1")) == (3, 0)
    assert drive.roster.lead("c#1") == 0


@pytest.mark.parametrize("answer", [[AWAY], [AWAY, Suspend("a#1", "too")]])
def test_all_that_take_part_are_held_or_nobody_takes_part(answer):
    """What a suspended worker still pushes would be dropped, so nothing would ever happen."""
    with pytest.raises(IllegalDecision, match="leaves a deadlock"):
        Drive(Scripted([answer]), "a#1", "b#1").push("a#1")


def test_a_restored_worker_is_waited_for():
    drive = suspended([Restore("b#1")])
    assert holds(drive.push("a#1")) == {"a#1": "the script says so"}
    assert released(drive.push("b#1")) == ["b#1"]


@pytest.mark.parametrize(
    ("decisions", "says"),
    [
        ([Suspend("c#1", "why")], "suspends 'c#1' 'a#1'"),
        ([AWAY], "'b#1' suspended"),
        ([Release("b#1")], "'b#1' suspended"),
        ([Restore("b#1"), AWAY], "suspends 'b#1'"),
        ([Restore("a#1")], "'a#1' suspended"),
        ([Restore(["b#1"])], "['b#1'] suspended"),
        ([Suspend("a#1", 3)], "suspends 'a#1' 3"),
        ([Drop(("a#1", 1), "why", "old")], "reason='old'"),
        ([Drop(("a#1", 1), "why", "lated")], "reason='lated' 'late'"),
    ],
)
def test_suspensions_and_reasons_that_cannot_be(decisions, says):
    drive = suspended(decisions)
    with pytest.raises(IllegalDecision, match=naming(says)):
        drive.push("a#1")


def test_a_snapshot_holds_who_is_suspended():
    drive = suspended(
        [Restore("b#1"), Suspend("c#1", "too"), Release("a#1")], workers=("a#1", "b#1", "c#1")
    )
    drive.push("a#1")
    assert drive.roster.returning == {"b#1"}
    restored = Machine.restore(drive.machine.snapshot(), drive.machine.paradigm)
    assert restored.snapshot() == drive.machine.snapshot()
    assert list(restored.roster.suspended) == ["c#1"]
    assert list(restored.roster.outdated) == ["b#1", "c#1"]


def test_a_worker_that_is_restored_meanwhile_has_not_left():
    """The answer to b's suspension restores c, which was suspended together with it."""
    heard = []

    class Rash(Scripted):
        def on_leave(self, roster, worker):
            heard.append(worker)
            return [Restore("c#1")]

    drive = Drive(Rash([[AWAY, Suspend("c#1", "too"), Release("a#1")]]), "a#1", "b#1", "c#1")
    assert drive.push("a#1")[-1] == Restore("c#1")
    assert heard == ["b#1"]


class Curious(Scripted):
    """Asks the roster for a stranger."""

    def on_join(self, roster, worker):
        return roster.lead("nobody")


@pytest.mark.parametrize(
    ("rule", "event", "file"),
    [
        (Curious, Joined(at=0.0, worker="a#1"), "test_machine.py"),
        (Scripted, Left(at=0.0, worker="a#1"), "machine.py"),
    ],
)
def test_an_error_comes_from_the_line_of_the_paradigm_or_of_the_machine(rule, event, file):
    with pytest.raises((KeyError, ProtocolViolation)) as raised:
        Machine(rule()).handle(event)
    path, line = line_in_paradigm(raised.value).rsplit(":", 1)
    assert Path(path).name == file
    assert line.isdecimal()


def test_a_snapshot_whose_paradigm_s_state_is_too_deep_is_refused():
    drive = Drive(Scripted([]), "a#1")
    state = nested = {}
    for _ in range(DEEPEST + 1):
        nested["a"] = nested = {}
    drive.machine.paradigm.state = lambda: state
    with pytest.raises(ValueError, match=naming("deep")):
        Machine.restore(drive.machine.snapshot(), drive.machine.paradigm)


def test_a_rule_draws_other_numbers_with_another_seed_and_the_same_in_a_replay():
    @dataclass
    class Drawing(Scripted):
        def on_push(self, roster, push):
            if draw(roster.seed, f"{push}") < 0.5:
                return [Drop(push, why="its draw"), Release(push[0])]
            return [Apply((push,)), Release(push[0])]

    def fates(seed):
        machine = Machine(Drawing(), None, seed)
        machine.handle(Joined(at=0.0, worker="a#1"))
        fates = []
        for clock in range(60):
            pushed = Pushed(
                at=1.0 + clock,
                worker="a#1",
                clock=clock,
                base=machine.roster.published,
                samples=8,
                busy_s=1.0,
            )
            fates.append(type(machine.handle(pushed)[0]).__name__)
            if clock == 30:
                machine = Machine.restore(machine.snapshot(), Drawing())
        return fates

    assert fates(0) == fates(0)
    assert fates(0) != fates(1)
    assert 15 < fates(0).count("Drop") < 45


@pytest.mark.parametrize(
    ("pushed", "applies", "says"),
    [
        ("a", lambda roster: [Apply(tuple(roster.buffered))], "b#1 collective"),
        ("ab", lambda roster: [Apply((min(roster.buffered),))], "1 2 collective"),
        ("ab", lambda roster: [Apply(())], "Reduced.on_push"),
        ("ab", lambda roster: [Apply(tuple(roster.buffered))], None),
    ],
)
def test_under_a_collective_an_update_is_of_all_members(pushed, applies, says):
    @dataclass
    class Reduced(Scripted):
        collective = "ring"

        def on_push(self, roster, push):
            if push[0][0] != pushed[-1]:
                return []
            return [*applies(roster), *map(Release, roster.held)]

    drive = Drive(Reduced(), "a#1", "b#1")
    for worker in pushed[:-1]:
        drive.push(f"{worker}#1")
    if says is None:
        assert len(drive.push(f"{pushed[-1]}#1")[0].pushes) == 2
        return
    with pytest.raises(IllegalDecision, match=naming(says)):
        drive.push(f"{pushed[-1]}#1")
