"""The machine: a paradigm with its legality, bookkeeping and invariants."""

from __future__ import annotations

from math import inf
from pathlib import Path
from traceback import extract_tb
from typing import Any, assert_never

import msgspec

from raysync.core.decisions import (
    Apply,
    Decision,
    Drop,
    DropReason,
    Hold,
    SetTimer,
    Suspend,
    Switch,
)
from raysync.core.events import Event, Joined, Left, Pushed, TimerFired
from raysync.core.legality import CHECKS, location, why_no_decision, why_not_reduced
from raysync.core.paradigm import AnyParadigm, Paradigm, reference_to
from raysync.core.roster import EXECUTE, Roster, RosterState
from raysync.core.structs import JSON_NATIVE, decode, encode, is_native, not_native
from raysync.errors import IllegalDecision, ProtocolViolation

METHODS: dict[type[Event], str] = {
    Joined: "on_join",
    Left: "on_leave",
    Pushed: "on_push",
    TimerFired: "on_timer",
}
SEQUENCES = list, tuple  # a constant, since `list | tuple` would be built on each use
BEYOND_THE_ROSTER = frozenset({SetTimer, Switch, Suspend})  # they change the machine, too
# Type of a decision -> its check, its execution, and whether it changes the machine, too.
RULES = {kind: (CHECKS[kind], EXECUTE[kind], kind in BEYOND_THE_ROSTER) for kind in EXECUTE}
# without a server, an update of a part of the members has no meaning
RULES_OF_COLLECTIVES = RULES | {Apply: (why_not_reduced, EXECUTE[Apply], False)}
NO_RULE = why_no_decision, EXECUTE[Hold], False  # its check always fails, so nothing is executed


# Both engines drive the same object. Its contract:
#
#  1. Only `handle` and `resume` change the state; `snapshot` writes it, `restore` reads it.
#  2. The same start and events give the same decisions. Time is an argument; no input is hidden.
#  3. An illegal event raises ProtocolViolation and changes nothing. A push of a worker that has
#     left is legal.
#  4. The order of decisions is binding; `Release.version` is the oldest model version that the
#     worker may read.
#  5. After each event every member is computing or held; all held without a timer is a bug of the
#     paradigm. A suspended worker is live, but no member, until it is restored.
#  6. Every push is applied once or dropped once: received = applied + dropped + buffered.
#  7. A worker that waits gets a Hold with a reason; so does a suspended worker after its push.
#  8. A worker id is used once; a newcomer starts at the clock of the slowest member, or of a
#     suspended worker further behind.
#  9. A paradigm reads the roster and never changes it. Decisions are checked before they take
#     effect: an IllegalDecision names the paradigm's file and line. A random rule draws by
#     `draw(roster.seed, key)`: the same in every replay, another in every seed.
# 10. There is one timer per key.
# 11. After `Release(pull=False)` the next push has the base of the last one. A worker's first
#     Release pulls.
# 12. After `resume` every live worker has the published weights, and computing workers repeat
#     their iteration on these.
# 13. `handle` costs O(1) amortised in the number of workers, except where a barrier opens.


class Machine:
    """Passes events to a paradigm and executes its decisions on the roster."""

    def __init__(
        self, paradigm: Paradigm, workload_samples: int | None = None, seed: int = 0
    ) -> None:
        self.paradigm = paradigm  # owned from here on
        self.roster = Roster(workload_samples, seed)
        self._rule_of = (RULES_OF_COLLECTIVES if paradigm.collective else RULES).get
        self.timers: dict[str, float] = {}
        self._handled = 0  # events so far
        # the number of the event after which the paradigm's state is checked next
        self._check_at = 1

    def handle(self, event: Event) -> list[Decision]:
        """Handle one event and return the decisions.

        Raises:
            ProtocolViolation: the event is impossible; the state is unchanged.
            IllegalDecision: the decision is impossible; the machine is unusable afterwards.
        """
        roster = self.roster
        if not roster.now <= event.at < inf:
            raise ProtocolViolation(f"time went from {roster.now} s to {event.at} s: {event}")
        if isinstance(event, Pushed):  # a `match` that captures fields takes five times as long
            decisions = self._push(event)
        elif isinstance(event, TimerFired):
            decisions = self._fire(event)
        elif isinstance(event, Joined):
            decisions = self._join(event)
        elif isinstance(event, Left):
            decisions = self._leave(event)
        else:
            assert_never(event)
        if not roster.computing and self._is_stuck():
            raise self._deadlock(event)
        self._handled += 1
        if self._handled == self._check_at:  # at the events 1, 2, 4, 8, ...
            self._check_at *= 2
            self._check_state()
        return decisions

    def _push(self, event: Pushed) -> list[Decision]:
        roster, worker = self.roster, event.worker
        self._check_push(event)
        roster.now = event.at
        if worker in roster.members:
            decisions = self._commit("on_push", self.paradigm.on_push(roster, roster.push(event)))
        else:
            decisions = self._drop(event)
        if worker in roster.held or worker in roster.suspended:
            decisions.append(self._hold(worker))
        return decisions

    def _fire(self, event: TimerFired) -> list[Decision]:
        roster, key, due_at = self.roster, event.key, self.timers.get(event.key)
        if due_at is None:
            raise ProtocolViolation(f"no timer {key!r} is set: {event}")
        if event.at < due_at:
            raise ProtocolViolation(f"timer {key!r} is set for {due_at} s: {event}")
        roster.now = event.at
        del self.timers[key]
        return self._commit("on_timer", self.paradigm.on_timer(roster, key))

    def _join(self, event: Joined) -> list[Decision]:
        roster, worker = self.roster, event.worker
        if worker in roster.live or worker in roster.departed:
            raise ProtocolViolation(f"the id {worker!r} was used before in this run: {event}")
        roster.now = event.at
        roster.join(worker)
        decisions = self._commit("on_join", self.paradigm.on_join(roster, worker))
        if worker in roster.held or worker in roster.suspended:
            decisions.append(self._hold(worker))
        return decisions

    def _leave(self, event: Left) -> list[Decision]:
        roster, worker = self.roster, event.worker
        if worker not in roster.live:
            raise ProtocolViolation(f"{worker!r} is not a member: {event}")
        roster.now = event.at
        took_part = worker in roster.members
        roster.leave(worker)
        if not took_part:
            return []
        return self._commit("on_leave", self.paradigm.on_leave(roster, worker))

    def _drop(self, event: Pushed) -> list[Decision]:
        """Drop the push of a worker that is no member; a restored one becomes a member."""
        roster, worker = self.roster, event.worker
        reason: DropReason
        if worker not in roster.live:
            reason, why = "left", "its worker had left before it arrived"
        elif worker in roster.suspended:
            reason, why = "suspended", f"its worker was suspended {roster.suspended[worker]}"
        else:
            reason, why = "restored", "begun before its worker was restored"
        dropped = roster.execute(Drop(roster.push(event), why, reason))
        if worker not in roster.members:
            return [dropped]
        return [dropped, *self._commit("on_join", self.paradigm.on_join(roster, worker))]

    def _commit(self, method: str, decided: list[Decision]) -> list[Decision]:
        """Check and execute what a method of the paradigm decided.

        A Switch and a Suspend call further methods, whose decisions follow.
        """
        if not isinstance(decided, SEQUENCES):
            raise self._illegal(method, f"returns {decided!r}; it must return a list of decisions")
        roster, rule_of = self.roster, self._rule_of
        done: list[Decision] = []
        suspended: list[str] = []
        for decision in decided:
            check, execute, goes_beyond = rule_of(type(decision), NO_RULE)
            if what := check(decision, roster):
                raise self._illegal(method, what)
            done.append(execute(roster, decision))
            if not goes_beyond:
                continue
            if isinstance(decision, SetTimer):
                self._set(decision)
            elif isinstance(decision, Switch):
                done += self._commit("on_switch", self.paradigm.on_switch(roster))
            else:
                assert isinstance(decision, Suspend), decision
                suspended.append(decision.worker)
        for worker in suspended:
            if worker in roster.suspended:  # an `on_leave` before may have restored it
                done += self._commit("on_leave", self.paradigm.on_leave(roster, worker))
        return done

    def _set(self, timer: SetTimer) -> None:
        if timer.at is None:
            self.timers.pop(timer.key, None)
        else:
            self.timers[timer.key] = timer.at

    def _hold(self, worker: str) -> Hold:
        why = self.paradigm.explain(self.roster, worker)
        if not isinstance(why, str):
            raise self._illegal(
                "explain", f"returns {why!r}; it says in a str why {worker!r} waits"
            )
        return Hold(worker, why)

    def _check_push(self, event: Pushed) -> None:
        roster, worker, clock = self.roster, event.worker, event.clock
        member = roster.live.get(worker)
        if member is None:
            if roster.departed.get(worker) != clock:
                raise ProtocolViolation(f"no iteration {clock} of {worker!r} is in flight: {event}")
            return
        computes = worker in roster.computing or worker in roster.outdated
        if not computes or member.clock != clock:
            raise ProtocolViolation(f"{worker!r} was not released for iteration {clock}: {event}")
        newest = roster.published if member.pull else member.version
        if not member.version <= event.base <= newest:
            raise ProtocolViolation(
                f"{worker!r} may read versions {member.version} to {newest}: {event}"
            )
        if not 1 <= event.steps <= event.samples or not 0.0 <= event.busy_s < inf:
            raise ProtocolViolation(f"a push has steps, samples of each, a finite time: {event}")
        if member.steps is not None and event.steps > member.steps:
            raise ProtocolViolation(
                f"{worker!r} was released for {member.steps} steps at most, not {event.steps}:"
                f" {event}"
            )
        if event.computed_at is not None and not 0 <= event.computed_at <= event.at:
            raise ProtocolViolation(f"a push arrives after it was computed: {event}")

    def _is_stuck(self) -> bool:
        waits = self.roster.held or self.roster.suspended
        return bool(waits) and not self.timers and not self.roster.returning

    def _deadlock(self, event: Event) -> IllegalDecision:
        roster = self.roster
        waiting = {**roster.held, **roster.suspended}
        return self._illegal(
            METHODS[type(event)],
            f"leaves a deadlock: every worker is held ({roster.names(waiting, len(waiting))}),"
            f" no timer is set, {len(roster.buffered)} pushes are buffered",
        )

    def _check_state(self) -> None:
        if what := not_native(self.paradigm.state()):
            raise self._illegal("state", f"keeps {what}; the state of a paradigm is {JSON_NATIVE}")

    def _illegal(self, method: str, what: str) -> IllegalDecision:
        return IllegalDecision(f"{location(self.paradigm, method)} {what}.")

    def resume(self, at: float) -> None:
        """Resume from a checkpoint of this time; new processes repeat iterations in flight.

        Raises:
            ProtocolViolation: the time is before the latest event.
        """
        if not self.roster.now <= at < inf:
            raise ProtocolViolation(f"time went from {self.roster.now} s to {at} s: it resumes")
        self.roster.now = at
        self.roster.resume()

    def snapshot(self) -> str:
        """Return the whole state as JSON; `restore(snapshot())` behaves identically."""
        return encode(
            MachineSnapshot(
                describe(self.paradigm), self.paradigm.state(), self.timers, self.roster.dump()
            )
        ).decode()

    @classmethod
    def restore(cls, text: str, paradigm: Paradigm) -> Machine:
        """Build the machine from its snapshot and a fresh paradigm, with the parameters in it.

        The caller makes the paradigm, because the names in a snapshot are never imported.
        """
        snapshot = decode(text, MachineSnapshot)
        if not is_native(snapshot.state):
            raise ValueError("the state of its paradigm is nested too deep, or too large")
        assert snapshot.paradigm == describe(paradigm), f"a snapshot of {snapshot.paradigm}"
        machine = cls(paradigm)
        machine.paradigm.load_state(snapshot.state)
        machine.timers = snapshot.timers
        machine.roster = Roster.load(snapshot.roster)
        return machine


class Description(msgspec.Struct, forbid_unknown_fields=True):
    """A paradigm as data."""

    reference: str = msgspec.field(name="class")  # `package.module:Name`
    parameters: dict[str, Any]


class MachineSnapshot(msgspec.Struct, forbid_unknown_fields=True):
    """The state of a machine."""

    paradigm: Description
    state: dict[str, Any]  # as `Paradigm.state` returned it
    timers: dict[str, float]
    roster: RosterState


def roster_in(snapshot: str) -> Roster:
    """Return the roster of a machine's snapshot."""
    return Roster.load(decode(snapshot, MachineSnapshot).roster)


def describe(paradigm: AnyParadigm) -> Description:
    """Return class and parameters of a paradigm."""
    return Description(reference_to(type(paradigm)), paradigm.parameters())


def line_in_paradigm(error: Exception) -> str:
    """Return the FILE:LINE in the paradigm that an error came through, or else the raising line."""
    _, *frames = extract_tb(error.__traceback__)  # the first: the caller of `Machine.handle`
    core = Path(__file__).parent
    outside = (frame for frame in reversed(frames) if Path(frame.filename).parent != core)
    last = next(outside, frames[-1])
    return f"{last.filename}:{last.lineno}"
