"""Paradigms against deliberately dumb second implementations, with lists and full scans."""

from hypothesis import given, strategies as st

from raysync.core.decisions import Apply, Release
from raysync.core.events import Joined, Left, Pushed
from raysync.core.machine import Machine
from raysync.paradigms import make
from tests.builders.paradigms import HYBRID_PARAMETERS
from tests.builders.plans import schedules
from tests.builders.schedules import simulate


class Oracle:
    """Lists and full scans; every waiting push is looked at after every event."""

    def __init__(self, k, staleness_tolerance, pull_interval, snapshot):
        self.k, self.interval, self.keeps_global = k, pull_interval, snapshot == "global"
        self.tolerance = float("inf") if staleness_tolerance == "inf" else staleness_tolerance
        self.clocks, self.released, self.floor = {}, {}, 0
        self.waiting = []  # (clock, worker), in order of arrival
        self.orphans = []
        self.updates = 0

    def handle(self, event):
        """[("apply", set of pushes, publish) or ("release", worker, pull)]."""
        answer = []
        match event:
            case Joined(worker=worker):
                self.clocks[worker] = min(self.clocks.values(), default=self.floor)
                return [self.release(worker)]
            case Left(worker=worker):
                self.floor = self.clocks.pop(worker)
                self.orphans += [(who, clock) for clock, who in self.waiting if who == worker]
                self.waiting = [(clock, who) for clock, who in self.waiting if who != worker]
            case Pushed(worker=worker, clock=clock):
                if worker not in self.clocks:
                    return []
                self.clocks[worker] += 1
                self.waiting.append((clock, worker))
        while True:
            slow = min(self.clocks.values(), default=0)
            eligible = [push for push in self.waiting if push[0] - slow <= self.tolerance]
            eligible.sort(key=lambda push: push[0])  # stable: then in order of arrival
            size = len(self.clocks) if self.k == "all" else min(self.k, len(self.clocks))
            if len(eligible) < size or not eligible + self.orphans:
                return answer
            taken = eligible[:size]
            pushes = {(worker, clock) for clock, worker in taken} | set(self.orphans)
            publish = not self.keeps_global or self.updates % self.interval == 0
            answer.append(("apply", pushes, publish))
            self.updates += 1
            self.orphans = []
            self.waiting = [push for push in self.waiting if push not in taken]
            answer += [self.release(worker) for _, worker in taken]

    def release(self, worker):
        nth = self.released.get(worker, 0)
        self.released[worker] = nth + 1
        return "release", worker, self.keeps_global or nth % self.interval == 0


def told(decisions):
    answer = []
    for decision in decisions:
        match decision:
            case Apply(pushes=pushes, publish=publish):
                assert len(set(pushes)) == len(pushes)
                answer.append(("apply", set(pushes), publish))
            case Release(worker=worker, pull=pull):
                answer.append(("release", worker, pull))
    return answer


def events(machine, choices):
    """Random events, legal ones: a few joins and leaves, mostly pushes of whoever computes."""
    roster, joined, late = machine.roster, 0, {}
    for at, choice in enumerate(choices):
        kind, which = choice % 12, choice // 12
        if joined < 2 or (kind == 0 and len(roster.members) < 7):
            joined += 1
            yield Joined(at=float(at), worker=f"w-{joined}#1")
        elif kind == 1:
            worker = sorted(roster.members)[which % len(roster.members)] if roster.members else None
            if worker is not None:
                if worker in roster.computing:
                    late[worker] = roster.clock(worker)
                yield Left(at=float(at), worker=worker)
        elif kind == 2 and late:
            worker, clock = late.popitem()
            yield Pushed(at=float(at), worker=worker, clock=clock, base=0, samples=1, busy_s=0.0)
        elif roster.computing:
            worker = list(roster.computing)[which % len(roster.computing)]
            member = roster.members[worker]
            yield Pushed(
                at=float(at),
                worker=worker,
                clock=member.clock,
                base=member.version,
                samples=1,
                busy_s=0.0,
            )


@given(HYBRID_PARAMETERS, st.lists(st.integers(0, 12 * 7 * 5 - 1), max_size=120))
def test_hybrid_agrees_with_the_oracle(parameters, choices):
    machine, oracle = Machine(make("hybrid", **parameters)), Oracle(**parameters)
    for event in events(machine, choices):
        assert told(machine.handle(event)) == oracle.handle(event), event


def computing_by_the_rule(history, staleness):
    """Who must be computing after a history of events: replays it with lists and a full scan at
    each step.
    """
    clocks, held = {}, []
    for event in history:
        match event:
            case Joined(worker=worker):
                clocks[worker] = min(clocks.values(), default=0)
                held.append(worker)
            case Left(worker=worker):
                clocks.pop(worker)
                held = [other for other in held if other != worker]
            case Pushed(worker=worker) if worker in clocks:
                clocks[worker] += 1
                held.append(worker)
        held = [worker for worker in held if clocks[worker] - min(clocks.values()) > staleness]
    return set(clocks) - set(held)


@given(schedules(), st.integers(0, 4))
def test_ssp_agrees_with_the_oracle(schedule, staleness):
    step_s, churn = schedule
    machine, history = Machine(make("ssp", staleness=staleness)), []
    for event, _ in simulate(machine, churn, step_s, 60):
        history.append(event)
        assert set(machine.roster.computing) == computing_by_the_rule(history, staleness)
