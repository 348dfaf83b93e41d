"""Sync-Switch in the shared suite, with timers that fire, so that stragglers are found, stood in
for and suspended.

What the phase in force sees must be a roster that its own rule would have made: nobody of it
waits for ever behind the detector's timer, and its bound on leads holds in it.
"""

from functools import partial

import pytest
from hypothesis import event, settings, strategies as st
from hypothesis.stateful import initialize, invariant, rule, run_state_machine_as_test
from msgspec.structs import replace

from raysync.core.decisions import Apply, Release, Restore, Suspend, Switch
from raysync.core.events import Joined
from raysync.core.journal import Entry
from raysync.paradigms import make
from raysync.record.follower import Follower
from raysync.testing.conformance import STEPS, Conformance
from tests.builders.paradigms import SWITCHES, lead_bound


class SwitchConformance(Conformance):
    @initialize(workload=Conformance.workloads, step_s=Conformance.steps_s)
    def start(self, workload, step_s):
        super().start(workload, step_s)
        self.follower = Follower(10**9)
        self.suspended = set()
        self.outdated = set()

    def send(self, happened):
        journal = []
        self.journal = journal
        super().send(happened)
        self.follower.feed([Entry(happened, tuple(journal))])
        dumped = replace(self.machine.roster.dump(), workload_samples=10**9)
        assert self.follower.rosters[0].dump() == dumped

    def check(self, decisions):
        self.journal += decisions
        under_way, switched_to = set(self.in_flight), None
        super().check(decisions)
        for decision in decisions:
            match decision:
                case Suspend(worker=worker):
                    event("suspended")
                    self.suspended.add(worker)
                case Restore(worker=worker):
                    self.suspended.remove(worker)
                    self.outdated |= {worker} & under_way
                case Switch(to=to, why=why):
                    event(f"switch: {why.partition(':')[0]}")
                    assert to in self.machine.paradigm.phases()
                    switched_to = to
                    assert not self.suspended, "a switch restores everybody"
                case Apply(pushes=pushes):
                    workers = {worker for worker, _ in pushes}
                    assert not workers & self.suspended, "no push of a suspended worker is applied"
                case Release(worker=worker):
                    assert worker not in self.suspended
        assert switched_to in (None, self.machine.paradigm.phase), "the last of them is in force"
        self.releases_keep_the_bound(decisions)
        self.suspended &= set(self.machine.roster.live)
        self.outdated &= set(self.machine.roster.live)

    def bound_in_force(self):
        paradigm = self.machine.paradigm
        then = paradigm.then if isinstance(paradigm.then, list) else [paradigm.then]
        spec = [paradigm.first, *then][paradigm.schedule.running_index]
        spec = {"name": spec} if isinstance(spec, str) else spec
        return lead_bound(spec["name"], spec)

    def releases_keep_the_bound(self, decisions):
        bound = self.bound_in_force()
        last = max(
            (index for index, each in enumerate(decisions) if isinstance(each, Switch)), default=0
        )
        for decision in decisions[last:]:
            if isinstance(decision, Release) and bound is not None:
                assert self.machine.roster.lead(decision.worker) <= bound

    @rule(slot=st.integers(0, 5), seconds=Conformance.seconds)
    def join(self, slot, seconds):
        """Its clock is that of the slowest, which after a Switch is one of many; so the shared
        suite's check is another.
        """
        roster = self.machine.roster
        if any(worker.startswith(f"w-{slot}#") for worker in roster.live):
            return
        self.lives[slot] = self.lives.get(slot, 0) + 1
        slowest = {member.clock for member in roster.members.values() if member.pace == roster.slow}
        slowest = slowest or {roster.floor_clock}
        apart = {roster.live[worker].clock for worker in (*roster.suspended, *roster.outdated)}
        worker = f"w-{slot}#{self.lives[slot]}"
        self.send(Joined(at=self.advance(seconds), worker=worker))
        clocks = {min({one, *apart}) for one in slowest} | apart
        assert self.machine.roster.clock(worker) in clocks

    def arrive(self, worker, seconds, busy_s=None):
        clock, outdated = self.in_flight[worker].clock, worker in self.outdated
        self.outdated.discard(worker)
        super().arrive(worker, seconds, busy_s)
        if outdated or (worker in self.suspended and worker in self.machine.roster.live):
            assert self.fate[worker, clock] == "dropped", (
                "a step from before its restoration is not applied"
            )

    @invariant()
    def the_phase_in_force_sees_a_roster_of_its_own(self):
        if not self.has_begun:
            return
        paradigm, roster = self.machine.paradigm, self.machine.roster
        away = self.suspended | self.outdated
        assert set(roster.suspended) == self.suspended
        assert self.outdated == roster.outdated.keys() - self.suspended
        assert set(roster.members) == set(roster.live) - away
        assert not away & {
            *roster.computing,
            *roster.held,
            *(worker for worker, _ in roster.buffered),
        }
        assert list(roster.held) == sorted(
            roster.held, key=lambda worker: roster.members[worker].arrival
        )
        assert roster.computing or paradigm.timers or not roster.held, "they would wait for ever"
        assert set(paradigm.timers) == set(self.machine.timers) - {"sync-switch: detect"}
        assert paradigm.watching == ("sync-switch: detect" in self.machine.timers)
        if self.suspended:
            assert len(roster.members) >= 2


@pytest.mark.parametrize("name", SWITCHES)
def test_conformance(name):
    fresh = staticmethod(partial(make, "sync-switch", **SWITCHES[name]))
    case = type(f"Switch_{name}", (SwitchConformance,), {"fresh": fresh})
    few = settings(max_examples=settings().max_examples // 12, stateful_step_count=STEPS)
    run_state_machine_as_test(case, settings=few)
