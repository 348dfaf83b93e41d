"""The machine's contract: legality, stamps, timers, rebasing, snapshots."""

from dataclasses import dataclass, field
from math import inf, nan
from pathlib import Path
from typing import ClassVar

import pytest

from raysync.core.decisions import (
    Apply,
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
from raysync.core.machine import Machine, line_in_paradigm
from raysync.core.paradigm import Paradigm
from raysync.core.structs import DEEPEST
from raysync.errors import IllegalDecision, ProtocolViolation
from raysync.paradigms import make
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

    with pytest.raises(IllegalDecision, match=naming("'a#1' pull=False")):
        Drive(Careless(), "a#1")


def test_what_the_machine_does_not_stamp_passes_through():
    pushes = (("a#1", 0), ("b#1", 0))
    apply = {"pushes": pushes, "weights": (0, 0.5), "phase": "late"}
    release = {"worker": "a#1", "steps": 3, "batch_size": 64}
    answer = [Apply(**apply), Release(**release), Release("b#1")]
    drive = Drive(Scripted([[], answer]), "a#1", "b#1", workload_samples=4 * SAMPLES)
    assert drive.roster.progress == 0
    drive.push("a#1")
    assert drive.push("b#1") == [
        Apply(**apply, version=1, samples_before=0),
        Release(**release, clock=1, version=1, lead=0),
        Release("b#1", clock=1, version=1, lead=0),
    ]
    assert drive.roster.progress == 0.5


def test_a_push_has_at_most_the_steps_that_its_worker_was_released_for():
    drive = Drive(Scripted([[Release("a#1", steps=3)], [Release("a#1")], []]), "a#1", "b#1")
    drive.push("a#1")
    for steps in (4, 9):
        with pytest.raises(ProtocolViolation, match=naming(f"3 {steps}")):
            drive.machine.handle(pushed(clock=1, steps=steps))
    drive.machine.handle(pushed(clock=1, steps=2))  # less was left of the workload
    drive.machine.handle(pushed(clock=2, steps=7))  # of a release that names none
    restored = Machine.restore(drive.machine.snapshot(), drive.machine.paradigm)
    assert restored.snapshot() == drive.machine.snapshot()
    assert restored.roster.buffered["a#1", 2].steps == 7


def test_batches_are_counted_by_steps():
    """A newcomer begins with the batch that the slowest is at, which clocks do not tell."""
    drive = Drive(make("local", paradigm="asp", steps=3), "a#1", "b#1")
    batches = lambda worker: drive.roster.live[worker].batches  # noqa: E731
    for worker in ("a#1", "a#1", "b#1"):
        drive.push(worker)
    assert (batches("a#1"), batches("b#1")) == (6, 3)
    drive.join("c#1")
    assert (drive.roster.clock("c#1"), batches("c#1")) == (1, 3)
    for worker in ("b#1", "c#1", "a#1"):
        drive.leave(worker)
    drive.join("a#2")
    assert (drive.roster.clock("a#2"), batches("a#2")) == (2, 6), "where the last one was"
    assert drive.roster.lead("a#2") == 0
    restored = Machine.restore(drive.machine.snapshot(), drive.machine.paradigm)
    assert restored.roster.members["a#2"] == drive.roster.members["a#2"]


def test_stamps_are_the_machines_also_on_decisions_that_have_some():
    """As those of a paradigm that returns an object that it has returned before; the object itself
    stays as it was answered.
    """
    kept = Release("a#1")
    applies = [Apply((("a#1", clock),), version=7, samples_before=9) for clock in range(2)]
    drive = Drive(Scripted([[apply, kept] for apply in applies]), "a#1")
    for clock in range(2):
        assert drive.push("a#1") == [
            Apply((("a#1", clock),), version=clock + 1, samples_before=clock * SAMPLES),
            Release("a#1", clock=clock + 1, version=clock + 1, lead=0),
        ]


def test_a_paradigm_may_drop():
    drive = Drive(Scripted([[Drop(("a#1", 0), why="too old"), Release("a#1")]]), "a#1")
    assert dropped(drive.push("a#1")) == [("a#1", 0)]
    assert (drive.roster.dropped, drive.roster.applied, drive.roster.buffered) == (1, 0, {})


GIVEN = ("a#1", 0)
"""The push that the machine has just buffered, of a worker that is held."""


@pytest.mark.parametrize(
    ("decisions", "says"),
    [
        (None, "None"),
        ([Release("a#1"), None], "None"),
        ([], "deadlock (a#1)"),
        ([Hold("a#1", why="mine")], "Hold"),
        ([Release("a#1"), Release("a#1")], "'a#1' computes"),
        ([Release("gone#1")], "'gone#1' left"),
        ([Release("fast-0")], "'fast-0' members 'a#1'"),
        ([Release(["a#1"])], "['a#1'] members 'a#1'"),
        ([Release("a#1", batch_size=0)], "batch_size=0"),
        ([Release("a#1", batch_size=1.5)], "batch_size=1.5"),
        ([Release("a#1", steps=0)], "steps=0"),
        ([Release("a#1", steps=1.5)], "steps=1.5"),
        ([Apply(())], "no push"),
        ([Apply((GIVEN,), weights=(1, 2))], "1 (1, 2)"),
        ([Apply((GIVEN,), weights=[1])], "1 [1]"),
        *(
            ([Apply((GIVEN,), weights=(weight,))], f"({weight!r},)")
            for weight in (-1, inf, 1e13, nan, "1", 0)
        ),
        ([Apply([GIVEN])], "tuple"),
        ([Apply((("nobody", 3),))], "('nobody', 3) 1 ('a#1', 0)"),
        ([Apply((["a#1", 0],))], "['a#1', 0] 1"),
        ([Apply((GIVEN, GIVEN))], "twice"),
        ([Apply((GIVEN,)), Drop(GIVEN, why="again")], "('a#1', 0) 0"),
        ([SetTimer("t", inf)], "'t' inf"),
        ([SetTimer(3, 1.0)], "3"),
        ([Note("seen", "a#1", {"who": {"a#1"}})], "'who' set"),
        ([Note("seen", "a#1", {1: 2})], "1 str"),
        ([Note("seen", "a#1", {"who": [{"a": ("b",)}]})], "'who' list"),
    ],
)
def test_an_illegal_decision_names_the_method_that_made_it(decisions, says):
    drive = Drive(Scripted([decisions]), "a#1", "gone#1")
    drive.leave("gone#1")
    with pytest.raises(IllegalDecision, match=naming(f"test_machine.py: Scripted.on_push {says}")):
        drive.push("a#1")


@pytest.mark.parametrize("values", [{}, {"a": None, "b": [1, 2.5, {"c": True}], "d": "text"}])
def test_what_json_gives_back_may_be_noted(values):
    drive = Drive(Scripted([[Note("seen", "a#1", values), Release("a#1")]]), "a#1")
    assert drive.push("a#1")[0].values == values


@dataclass
class Forgetful(Scripted):
    """Its state cannot be written down."""

    seen: object = field(default_factory=list, init=False)

    def on_push(self, roster, push):
        self.seen = {push}
        return [Release(push[0])]


class Silent(Timed):
    """Its reason to wait is no text."""

    def explain(self, roster, worker):
        return None


class Switching(Scripted):
    on_switch = Paradigm.on_switch


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (Forgetful(), "'seen' set: {('a#1' 0)}"),
        (Silent([[SetTimer("t", 9.0)]]), "Silent.explain str 'a#1'"),
        (Switching([[Switch("other", why="test")]]), "on_switch"),
    ],
    ids=["state", "reason", "switch"],
)
def test_what_a_rule_lacks_is_found_at_once(rule, says):
    drive = Drive(rule, "a#1")
    with pytest.raises(IllegalDecision, match=naming(says)):
        drive.push("a#1")


def test_a_joiner_that_is_not_released_gets_a_hold():
    class Shy(Timed):
        def on_join(self, roster, worker):
            return [SetTimer("soon", roster.now + 1.0)]

    drive = Drive(Shy())
    assert holds(drive.join("a#1")) == {"a#1": "the script says so"}


def test_timers_are_set_replaced_cancelled_and_fire_once():
    times = ("t", 5.0), ("t", 7.0), ("u", 6.0), ("u", None), ("never", None)
    replaced = [SetTimer(*each) for each in times]
    drive = Drive(Timed([[SetTimer("t", 5.0)], replaced]), "a#1")
    drive.push("a#1")
    assert released(drive.machine.handle(TimerFired(at=5.0, key="t"))) == ["a#1"]
    with pytest.raises(ProtocolViolation):
        drive.machine.handle(TimerFired(at=5.0, key="t"))
    drive.push("a#1", at=5.5)
    assert drive.machine.timers == {"t": 7.0}
    with pytest.raises(ProtocolViolation, match=naming("'t' 7")):
        drive.machine.handle(TimerFired(at=6.0, key="t"))


def test_a_paradigm_that_sets_a_timer_handles_it():
    drive = Drive(Scripted([[SetTimer("t", 1.0)]]), "a#1")
    drive.push("a#1")
    with pytest.raises(IllegalDecision, match=naming("'t' on_timer")):
        drive.machine.handle(TimerFired(at=1.0, key="t"))


def test_a_switch_makes_every_lead_0_and_leaves_clocks_alone():
    switch = [Note("kept", "a#1"), Switch("other", why="test")]
    answers = [[Release("a#1")], [Release("a#1")], switch, [Release("b#1")]]
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
    assert roster.clock("c#1") == 3, "where the slowest is: a has made no push since the switch"
    drive.machine.roster.execute(Switch("asp", "again"))
    restored = Machine.restore(drive.machine.snapshot(), drive.machine.paradigm)
    assert restored.snapshot() == drive.machine.snapshot()


def test_rebasing_nobody_is_harmless():
    drive = Drive(Scripted())
    drive.roster.execute(Switch("asp", "nobody is there"))
    assert released(drive.join("a#1")) == ["a#1"]


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
    with pytest.raises(ProtocolViolation, match=naming("'b#1' 1")):
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
    with pytest.raises(IllegalDecision, match="deadlock"):
        Drive(Scripted([answer]), "a#1", "b#1").push("a#1")


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
    answer = [Restore("b#1"), Suspend("c#1", "too"), Release("a#1")]
    drive = suspended(answer, workers=("a#1", "b#1", "c#1"))
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
        for clock in range(60):
            event = pushed(at=1.0 + clock, clock=clock, base=machine.roster.published)
            yield type(machine.handle(event)[0])
            if clock == 30:
                machine = Machine.restore(machine.snapshot(), Drawing())

    first = list(fates(0))
    assert list(fates(0)) == first != list(fates(1))
    assert 15 < first.count(Drop) < 45


class Reduced(Scripted):
    collective = "ring"


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([[Apply((GIVEN,))]], "b#1 collective"),
        ([[], [Apply((GIVEN,))]], "1 2 collective"),
        ([[], [Apply(())]], "Reduced.on_push"),
    ],
)
def test_under_a_collective_an_update_is_of_all_members(answers, says):
    whole = [Apply((GIVEN, ("b#1", 0))), Release("a#1"), Release("b#1")]
    drive = Drive(Reduced([[], whole, *answers]), "a#1", "b#1")
    drive.push("a#1")
    assert len(drive.push("b#1")[0].pushes) == 2
    drive = Drive(Reduced(list(answers)), "a#1", "b#1")
    if len(answers) > 1:
        drive.push("a#1")
    with pytest.raises(IllegalDecision, match=naming(says)):
        drive.push("b#1" if len(answers) > 1 else "a#1")
