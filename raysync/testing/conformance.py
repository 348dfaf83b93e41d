"""The contract of a paradigm, tested on random histories by a Hypothesis state machine."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from raysync.core.decisions import Apply, Decision, Drop, Hold, Release, Restore, Switch
from raysync.core.events import Event, Joined, Left, Pushed, TimerFired
from raysync.core.machine import Machine
from raysync.core.paradigm import Paradigm
from raysync.errors import ConfigError
from raysync.paradigms import make

try:
    from hypothesis import HealthCheck, settings, strategies as st
    from hypothesis.stateful import (
        RuleBasedStateMachine,
        initialize,
        invariant,
        precondition,
        rule,
        run_state_machine_as_test,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "raysync.testing needs Hypothesis: pip install 'raysync[testing]'."
    ) from error

STEPS = 60  # events of a history
PUSHES = 40  # pushes after a history, when only pushes and timers continue
PATIENCE = 300  # pushes in a row without an update: more than any paradigm collects
SAMPLES = 8  # the batch size of a release without one
METHODS = ("on_join", "on_push", "on_leave", "on_timer", "on_switch", "explain")


def check_paradigm(
    paradigm: str | Callable[[], Paradigm], *, lead_bound: int | None = None, examples: int = 40
) -> None:
    """Search for a history under which a paradigm breaks the contract of `Machine`.

    On every history, decisions are legal and change no roster; every push is applied once or
    dropped once; a worker that waits has a reason of one line; and a restored machine decides the
    same. After each history all workers continue at their own paces: they do not all wait for ever,
    and their pushes lead to updates.

    Args:
        paradigm: a name (`ssp`, `package.module:Class`), a class, or a function that returns one.
        lead_bound: the largest lead, in clocks, of a released worker; None: no bound.
        examples: the number of histories.

    Raises:
        AssertionError, ProtocolViolation: with the shortest such history.
        IllegalDecision: with the paradigm's line of an impossible decision.
    """
    fresh = _factory(paradigm)
    case = type(
        f"Conformance_{fresh().name}",
        (Conformance,),
        {"fresh": staticmethod(fresh), "lead_bound": lead_bound},
    )
    run_state_machine_as_test(
        case,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )


def _factory(paradigm: str | Callable[[], Paradigm]) -> Callable[[], Paradigm]:
    if not isinstance(paradigm, str):
        return paradigm
    name = paradigm
    if not isinstance(make(name), Paradigm):
        raise ConfigError(
            f"{name} is not a Paradigm, but a run of several machines; check the paradigm of each."
        )
    return lambda: make(name)  # type: ignore[return-value]  # checked above


class Conformance(RuleBasedStateMachine):
    """Random histories of one paradigm."""

    fresh: Callable[[], Paradigm]
    lead_bound: int | None = None
    seconds = st.sampled_from([0.0, 0.1, 0.5, 1.0, 1.0, 3.0])
    workloads = st.sampled_from([None, 200, 500])
    steps_s = st.lists(st.sampled_from([1.0, 1.0, 0.3, 3.7]), min_size=6, max_size=6)

    @initialize(workload=workloads, step_s=steps_s, seed=st.integers(0, 3))
    def start(self, workload: int | None, step_s: list[float], seed: int = 0) -> None:
        """Begin with a machine without workers."""
        self.machine = Machine(_guarded(self.fresh()), workload, seed)
        self.now = 0.0
        self.lives: dict[int, int] = {}  # slot -> number of its latest life
        self.in_flight: dict[str, Release] = {}  # worker -> its release, until it pushes
        self.fate: dict[tuple[str, int], str] = {}  # push -> applied or dropped
        self.sent = 0  # the number of pushes
        self.slow = 0  # the slowest pace after the latest event
        self.version = 0
        self.has_switched = self.has_restored = self.has_dropped_stale = False
        self.step_s = step_s  # slot -> seconds of its steps after the history
        self.is_sound = True  # no failure was found yet
        self.is_over = False  # the history has ended: the machine is no longer restored

    # ---- what happens ----

    @rule(slot=st.integers(0, 5), seconds=seconds)
    def join(self, slot: int, seconds: float) -> None:
        """Join the next life of a slot."""
        live = self.machine.roster.live
        if any(worker.startswith(f"w-{slot}#") for worker in live):
            return
        self.lives[slot] = self.lives.get(slot, 0) + 1
        clocks = [member.clock for member in live.values()]
        worker = f"w-{slot}#{self.lives[slot]}"
        self.send(Joined(at=self.advance(seconds), worker=worker))
        if clocks:
            clock = live[worker].clock  # of one that is suspended at once, too
            assert min(clocks) <= clock <= max(clocks), "it joins at a clock of its own"
            unlike_paces = self.has_switched or self.has_restored or self.has_dropped_stale
            assert unlike_paces or clock == min(clocks), "it joins at the slowest clock"

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data(), seconds=seconds)
    def push(self, data: st.DataObject, seconds: float) -> None:
        """Send the push of a worker, which may have left since."""
        self.arrive(data.draw(st.sampled_from(sorted(self.in_flight))), seconds)

    def arrive(self, worker: str, seconds: float, busy_s: float | None = None) -> None:
        """Send a worker's push after some seconds of computing, or of `busy_s`."""
        release = self.in_flight.pop(worker)
        steps = release.steps or 1
        self.sent += 1
        self.send(
            Pushed(
                at=self.advance(seconds),
                worker=worker,
                clock=release.clock,
                base=release.version,
                samples=steps * (release.batch_size or SAMPLES),
                busy_s=seconds if busy_s is None else busy_s,
                steps=steps,
            )
        )

    @precondition(lambda self: self.machine.roster.live)
    @rule(data=st.data(), seconds=seconds)
    def leave(self, data: st.DataObject, seconds: float) -> None:
        """Remove a worker, in the middle of a step or while it waits."""
        worker = data.draw(st.sampled_from(sorted(self.machine.roster.live)))
        self.send(Left(at=self.advance(seconds), worker=worker))

    @precondition(lambda self: self.machine.timers)
    @rule(late_s=st.sampled_from([0.0, 0.1, 3.0]))
    def tick(self, late_s: float) -> None:
        """Fire the next timer, in time or late."""
        self.fire(late_s)

    def fire(self, late_s: float) -> None:
        """Fire the next timer, this many seconds late."""
        at, key = self.next_timer()
        self.now = max(self.now, at) + late_s
        self.send(TimerFired(at=self.now, key=key))

    def next_timer(self) -> tuple[float, str]:
        """Return the due time and the key of the next timer; infinity without one."""
        return min(((at, key) for key, at in self.machine.timers.items()), default=(inf, ""))

    def teardown(self) -> None:
        """Let all workers continue after the history."""
        if not self.has_begun or not self.is_sound:
            return
        self.is_over = True
        self.machine = Machine.restore(self.machine.snapshot(), _guarded(self.fresh()))
        due: dict[str, float] = {}  # worker -> when its push arrives
        until = self.sent + PUSHES
        updated_at, version = self.sent, self.version
        waiting = set(self.machine.roster.buffered)
        for _ in range(10 * PATIENCE):
            steps = {worker: self.step_s[int(worker[2])] for worker in self.in_flight}
            due = {worker: due.get(worker, self.now + steps[worker]) for worker in steps}
            at, worker = min(((at, worker) for worker, at in due.items()), default=(inf, ""))
            tick_at, _ = self.next_timer()
            if min(at, tick_at) == inf:
                return  # no worker is left
            if tick_at <= at:
                self.fire(0.0)
            else:
                del due[worker]
                self.arrive(worker, max(0.0, at - self.now), steps[worker])
            if self.version > version:
                updated_at, version = self.sent, self.version
                if self.sent >= until:
                    left = waiting & self.machine.roster.buffered.keys()
                    assert not left, f"{min(left)} is neither applied nor dropped, for ever"
                    return
            assert self.sent - updated_at < PATIENCE, "all compute, and nothing is ever applied"
        raise AssertionError("its timers fire, and nothing is ever applied")

    def advance(self, seconds: float) -> float:
        """Advance the time, and return it."""
        self.now += seconds
        return self.now

    def send(self, event: Event) -> None:
        """Feed an event to the machine and to its restored copy, and compare them."""
        self.is_sound = False
        before = self.machine.roster.version
        if self.is_over:
            self.check(self.machine.handle(event))
            self.is_sound = True
            return
        restored = Machine.restore(self.machine.snapshot(), _guarded(self.fresh()))
        decisions = self.machine.handle(event)
        assert restored.handle(event) == decisions, "a restored machine decides otherwise"
        assert restored.snapshot() == self.machine.snapshot(), "a restored machine differs"
        updates = sum(isinstance(decision, Apply) for decision in decisions)
        assert self.machine.roster.version == before + updates, (
            "versions are not counted by updates"
        )
        self.machine = restored
        self.check(decisions)
        self.is_sound = True

    # ---- what must hold ----

    def check(self, decisions: list[Decision]) -> None:
        """Check the decisions, in their order."""
        roster = self.machine.roster
        for decision in decisions:
            match decision:
                case Apply(pushes=pushes, version=version):
                    assert version == self.version + 1, f"version {version} is out of its turn"
                    self.version = version
                    for push in pushes:
                        self.record_fate(push, "applied")
                case Drop(push=push, reason=reason):
                    self.record_fate(push, "dropped")
                    self.has_dropped_stale |= reason == "stale"
                case Release(worker=worker, version=version):
                    assert version <= self.version, "it may read what is not there yet"
                    assert worker not in self.in_flight, f"{worker} is released twice"
                    self.in_flight[worker] = decision
                    if self.lead_bound is not None:
                        lead = roster.lead(worker)
                        assert lead <= self.lead_bound, f"{worker} is released {lead} clocks ahead"
                case Hold(worker=worker, why=why):
                    waits = worker in roster.held or worker in roster.suspended
                    assert waits, f"{worker} has a Hold, but is released"
                    assert why, f"no reason is given for {worker} to wait"
                    assert "\n" not in why, "a reason is one line"
                case Switch():
                    self.has_switched = True
                case Restore():
                    self.has_restored = True

    def record_fate(self, push: tuple[str, int], fate: str) -> None:
        """Record the fate of a push."""
        assert push not in self.fate, f"{push} is used twice"
        self.fate[push] = fate

    @invariant()
    def pushes_are_conserved(self) -> None:
        """Compare the roster's counts of pushes with the observed ones."""
        if not self.has_begun:
            return
        roster, fates = self.machine.roster, list(self.fate.values())
        assert self.sent == roster.received, "a push is not counted"
        used = roster.applied + roster.dropped
        assert self.sent == used + len(roster.buffered), "a push is neither used nor buffered"
        assert fates.count("applied") == roster.applied, "an applied push is not counted"
        assert fates.count("dropped") == roster.dropped, "a dropped push is not counted"

    @invariant()
    def every_member_computes_or_is_held(self) -> None:
        """Check that no member is both, or neither."""
        if not self.has_begun:
            return
        roster = self.machine.roster
        computing, held = set(roster.computing), set(roster.held)
        assert set(roster.members) == computing | held, "a member neither computes nor is held"
        assert not computing & held, "a member computes and is held"
        in_flight = {worker for worker in self.in_flight if worker in roster.members}
        assert computing == in_flight, "a worker computes without a release"

    @invariant()
    def the_slowest_never_falls(self) -> None:
        """Check that the slowest pace only rises."""
        if self.has_begun and self.machine.roster.members:
            assert self.machine.roster.slow >= self.slow, "the slowest pace fell"
            self.slow = self.machine.roster.slow

    @property
    def has_begun(self) -> bool:
        """Whether `start` has run: Hypothesis checks invariants also before it."""
        return hasattr(self, "machine")


def _guarded(paradigm: Paradigm) -> Paradigm:
    """Make every method of a paradigm fail that changes the roster (clause 9 of the contract)."""
    for name in METHODS:
        setattr(paradigm, name, _without_changes(name, getattr(paradigm, name)))
    return paradigm


def _without_changes(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(roster: Any, *arguments: Any) -> Any:
        before = repr(roster.dump())
        answer = method(roster, *arguments)
        assert repr(roster.dump()) == before, f"{name} changes the roster; only the machine may"
        return answer

    return call
