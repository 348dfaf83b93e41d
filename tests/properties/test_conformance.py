"""Every paradigm under random joins, pushes, leaves and restarts: one state machine for all of
them.

Snapshot and restore happen at any moment: after each event the machine is written down, restored,
and the restored one goes on.
"""

import copy
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from raysync.core.decisions import Apply, Drop, Hold, Release
from raysync.core.events import Joined, Left, Pushed
from raysync.core.machine import Machine
from raysync.paradigms import make
from tests.builders.paradigms import VARIANTS, lead_bound


class Conformance(RuleBasedStateMachine):
    name: str
    parameters: dict

    @initialize(workload=st.sampled_from([None, 500]))
    def start(self, workload):
        self.machine = Machine(make(self.name, **self.parameters), workload)
        self.now = 0.0
        self.lives = {}
        self.flying = {}  # worker -> Release whose push has not been sent
        self.fate = {}  # push -> "applied" or "dropped"
        self.sent = 0
        self.slow = 0
        self.version = 0

    def send(self, event):
        before = copy.deepcopy(self.machine.roster.dump())
        restored = Machine.restore(self.machine.snapshot(), make(self.name, **self.parameters))
        decisions = self.machine.handle(event)
        assert restored.handle(event) == decisions, "a restored machine decides the same"
        assert restored.snapshot() == self.machine.snapshot()
        assert (
            before["version"] + sum(isinstance(d, Apply) for d in decisions)
            == self.machine.roster.version
        )
        self.machine = restored  # go on with the restored one
        self.check(decisions)

    def check(self, decisions):
        bound = lead_bound(self.name, self.parameters)
        for decision in decisions:
            match decision:
                case Apply(pushes=pushes, version=version):
                    assert version == self.version + 1
                    self.version = version
                    for push in pushes:
                        assert push not in self.fate, f"{push} is used twice"
                        self.fate[push] = "applied"
                case Drop(push=push):
                    assert push not in self.fate
                    self.fate[push] = "dropped"
                case Release(worker=worker, version=version):
                    assert version <= self.version
                    assert worker not in self.flying
                    self.flying[worker] = decision
                    if bound is not None:
                        assert self.machine.roster.lead(worker) <= bound
                case Hold(worker=worker, why=why):
                    assert (
                        worker in self.machine.roster.held
                        or worker in self.machine.roster.suspended
                    )
                    assert why
                    assert "\n" not in why

    def pass_time(self, seconds):
        self.now += seconds
        return self.now

    seconds = st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.0, 3.0])

    @rule(slot=st.integers(0, 5), seconds=seconds)
    def join(self, slot, seconds):
        members = self.machine.roster.live
        if any(worker.startswith(f"w-{slot}#") for worker in members):
            return
        self.lives[slot] = self.lives.get(slot, 0) + 1
        slowest = min((member.clock for member in members.values()), default=None)
        worker = f"w-{slot}#{self.lives[slot]}"
        self.send(Joined(at=self.pass_time(seconds), worker=worker))
        if slowest is not None:
            assert self.machine.roster.clock(worker) == slowest

    @precondition(lambda self: self.flying)
    @rule(data=st.data(), seconds=seconds)
    def push(self, data, seconds):
        worker = data.draw(st.sampled_from(sorted(self.flying)))
        release = self.flying.pop(worker)
        self.sent += 1
        self.send(
            Pushed(
                at=self.pass_time(seconds),
                worker=worker,
                clock=release.clock,
                base=release.version,
                samples=8,
                busy_s=seconds,
            )
        )

    @precondition(lambda self: self.machine.roster.live)
    @rule(data=st.data(), seconds=seconds)
    def leave(self, data, seconds):
        worker = data.draw(st.sampled_from(sorted(self.machine.roster.live)))
        self.send(Left(at=self.pass_time(seconds), worker=worker))

    @invariant()
    def pushes_are_conserved(self):
        if not hasattr(self, "machine"):
            return
        roster = self.machine.roster
        fates = list(self.fate.values())
        assert (
            self.sent == roster.received == roster.applied + roster.dropped + len(roster.buffered)
        )
        assert (fates.count("applied"), fates.count("dropped")) == (roster.applied, roster.dropped)

    @invariant()
    def every_member_computes_or_is_held(self):
        if not hasattr(self, "machine"):
            return
        roster = self.machine.roster
        assert set(roster.members) == set(roster.computing) | set(roster.held)
        assert not set(roster.computing) & set(roster.held)
        assert set(roster.computing) == {
            worker for worker in self.flying if worker in roster.members
        }

    @invariant()
    def counted_paces_are_true(self):
        if not hasattr(self, "machine"):
            return
        roster = self.machine.roster
        paces = [member.pace for member in roster.members.values()]
        if paces:
            assert (roster.slow, roster.fast) == (min(paces), max(paces))
            assert roster.slowest_worker() == min(
                w for w, member in roster.members.items() if member.pace == roster.slow
            )
        held = sorted(((roster.members[w].pace, i, w) for i, w in enumerate(roster.held)))
        for limit in range(4):
            assert roster.held_within(limit) == [
                w for pace, _, w in held if pace <= roster.slow + limit
            ]

    @invariant()
    def the_slowest_never_falls(self):
        if not hasattr(self, "machine"):
            return
        if self.machine.roster.members:
            assert self.machine.roster.slow >= self.slow
            self.slow = self.machine.roster.slow

    @invariant()
    def bsp_clocks_differ_by_at_most_one(self):
        if hasattr(self, "machine") and self.name == "bsp":
            clocks = sorted({member.clock for member in self.machine.roster.members.values()})
            assert all(b - a == 1 for a, b in pairwise(clocks))
            assert len(clocks) <= 2


@pytest.mark.parametrize("rule_name", VARIANTS)
def test_conformance(rule_name):
    name, parameters = VARIANTS[rule_name]
    case = type(
        f"Conformance_{rule_name}", (Conformance,), {"name": name, "parameters": parameters}
    )
    run_state_machine_as_test(
        case,
        settings=settings(max_examples=settings().max_examples * 2 // 5, stateful_step_count=60),
    )


def test_paradigms_do_not_change_the_roster():
    """Contract 9, by comparing the roster around every call of a paradigm."""
    for name, parameters in VARIANTS.values():
        paradigm = make(name, **parameters)
        machine = Machine(paradigm)

        def guarded(method):
            def call(roster, argument):
                before = copy.deepcopy(roster.dump())
                decisions = method(roster, argument)
                assert roster.dump() == before
                return decisions

            return call

        for method in ("on_join", "on_push", "on_leave"):
            setattr(paradigm, method, guarded(getattr(paradigm, method)))
        machine.handle(Joined(at=0.0, worker="a#1"))
        machine.handle(Joined(at=0.0, worker="b#1"))
        for clock in range(6):
            at = float(clock + 1)
            for worker in ("a#1", "b#1"):
                if worker in machine.roster.computing:
                    member = machine.roster.members[worker]
                    machine.handle(
                        Pushed(
                            at=at,
                            worker=worker,
                            clock=member.clock,
                            base=member.version,
                            samples=1,
                            busy_s=0,
                        )
                    )
        machine.handle(Left(at=9.0, worker="b#1"))
        assert list(machine.roster.members) == ["a#1"]
