"""The members of a run, computing or held, and the buffered pushes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any

import msgspec

from raysync.core.decisions import (
    Apply,
    Decision,
    Drop,
    Hold,
    Note,
    Push,
    Release,
    Restore,
    SetTimer,
    Suspend,
    Switch,
)
from raysync.core.events import Pushed
from raysync.core.structs import Seconds, Whole
from raysync.core.telemetry import Telemetry

NAMES_SHOWN = 3

# A worker's *clock* counts its pushes. Its *pace*, by which leads are measured, leaves out pushes
# dropped as stale on arrival, and a Switch sets all paces equal.
#
# A suspended worker is live, but no member: neither computing nor held, and no lead is measured
# from it. A worker restored during a step becomes a member again when the push of this step
# arrives.
#
# No method scans all members per push. The slowest and the fastest pace are counted, held workers
# are grouped by pace (a bound on the lead bounds the number of paces), and the slowest worker comes
# from a heap, built once per pace: as each rise of the slowest pace takes a push of every member,
# this is O(log n) amortised.


class Member(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A worker that takes part now."""

    clock: Whole  # the iteration that it computes, or waits to start
    pace: Whole
    telemetry: Telemetry
    # the oldest model version that its running iteration may have read; -1: never released
    version: Whole = -1
    base: Whole = -1  # of its latest push
    pull: bool = True  # of its latest Release, as `steps`
    steps: Whole | None = None
    # consumed by its slot before its running iteration; the clock, if each takes one
    batches: Whole = 0
    # pushes received from all workers up to its latest push, or else its joining
    arrival: Whole = 0


class Buffered(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The part of a buffered push that a snapshot keeps."""

    base: Whole  # for paradigms that look at staleness
    samples: Whole
    steps: Whole = 1


class RosterState(msgspec.Struct, forbid_unknown_fields=True):
    """A roster in a snapshot; the fields are `Roster`'s."""

    workload_samples: Whole | None
    now: Seconds
    version: Whole
    published: Whole
    samples_applied: Whole
    received: Whole
    applied: Whole
    dropped: Whole
    slow: Whole
    fast: Whole
    floor_clock: Whole
    floor_batches: Whole
    departed: dict[str, Whole | None]
    suspended: dict[str, str]
    live: dict[str, Member]
    members: list[str]
    computing: list[str]
    held: list[str]
    outdated: list[str]
    buffered: list[tuple[str, Whole, Buffered]]
    seed: Whole = 0  # checkpoints of earlier versions have none


FIELDS = RosterState.__struct_fields__
# These are copied as they are; `dump` and `load` convert the others.
COPIED = (*FIELDS[: FIELDS.index("suspended") + 1], "seed")


class Roster:
    """The state of the members, which only `Machine` changes.

    Iteration follows the order of arrival unless stated otherwise; until the next Switch, restored
    workers come last.
    """

    def __init__(self, workload_samples: int | None = None, seed: int = 0) -> None:
        self.workload_samples = workload_samples
        self.seed = seed  # of the run, for rules that `draw`
        self.now = 0.0  # of the current event, in seconds since the run began
        self.version = 0  # updates so far
        # the version that workers pull: the newest, unless an Apply was not published
        self.published = 0
        self.samples_applied = 0
        self.received = 0
        self.applied = 0
        self.dropped = 0
        # received = applied + dropped + len(buffered), always
        self.slow = 0  # the smallest pace of the members
        self.fast = 0  # the largest pace of the members
        # where a newcomer starts when there is no member
        self.floor_clock, self.floor_batches = 0, 0
        self.live: dict[str, Member] = {}  # joined and not left
        # all live but the suspended, and the restored whose old step still runs
        self.members: dict[str, Member] = {}
        self.computing: OrderedDict[str, None] = OrderedDict()
        self.held: dict[str, None] = {}
        # arrived, and neither applied nor dropped
        self.buffered: dict[Push, Pushed | Buffered] = {}
        # worker that left -> the clock of its push in flight
        self.departed: dict[str, int | None] = {}
        self.suspended: dict[str, str] = {}  # worker -> the reason
        # at a step begun before their suspension, whose push will be dropped; restored or not
        self.outdated: dict[str, None] = {}
        self._population: dict[int, int] = {}  # pace -> how many members have it, if any
        self._held_at: dict[int, dict[str, None]] = {}  # pace -> the held members at it, if any
        # a heap of all members at the pace `_slowest_at`, and of some that have left it
        self._slowest: list[str] = []
        self._slowest_at = -1  # -1: the heap must be built

    @property
    def progress(self) -> float | None:
        """Samples in applied pushes / samples of the workload; None without a workload."""
        return (
            None if self.workload_samples is None else self.samples_applied / self.workload_samples
        )

    @property
    def returning(self) -> set[str]:
        """The restored workers whose old step still runs."""
        return self.outdated.keys() - self.suspended.keys()

    def clock(self, worker: str) -> int:
        """Return the number of the worker's pushes, counted from the clock at which it joined."""
        return self.members[worker].clock

    def lead(self, worker: str) -> int:
        """Return how many clocks the worker is ahead of the slowest member."""
        return self.members[worker].pace - self.slow

    def is_fastest(self, worker: str) -> bool:
        """Return whether no member is further ahead."""
        return self.members[worker].pace == self.fast

    def telemetry(self, worker: str) -> Telemetry:
        """Return the worker's row of the telemetry table."""
        return self.members[worker].telemetry

    def slowest_worker(self) -> str | None:
        """Return the member with the smallest pace; of several, the first by id."""
        if not self.members:
            return None
        if self._slowest_at != self.slow:
            self._slowest = [
                worker for worker, member in self.members.items() if member.pace == self.slow
            ]
            heapify(self._slowest)
            self._slowest_at = self.slow
        while (top := self.members.get(self._slowest[0])) is None or top.pace != self.slow:
            heappop(self._slowest)
        return self._slowest[0]

    def held_within(self, lead: int) -> list[str]:
        """Return the held workers within that lead, the furthest behind first, then by arrival."""
        limit, held_at = self.slow + lead, self._held_at
        paces: list[int] = []
        for pace in held_at:  # they are few, and mostly one of them is within
            if pace <= limit:
                paces.append(pace)
        within: list[str] = []
        if len(paces) > 1:
            paces.sort()
        for pace in paces:
            within += held_at[pace]
        return within

    def count_held_within(self, lead: int) -> int:
        """Count the held workers within that lead."""
        limit = self.slow + lead
        return sum(len(workers) for pace, workers in self._held_at.items() if pace <= limit)

    def names(self, workers: Iterable[str], count: int) -> str:
        """List up to three of `count` workers, for the reason of a Hold."""
        names = ", ".join(islice(workers, NAMES_SHOWN))
        return names if count <= NAMES_SHOWN else f"{names} and {count - NAMES_SHOWN} more"

    def join(self, worker: str) -> None:
        """Add a held member at the clock of the slowest member, or of a suspended one behind it."""
        slowest = self.slowest_worker()
        apart = [_position(self.live[other]) for other in (*self.suspended, *self.outdated)]
        behind = (
            (self.floor_clock, self.floor_batches)
            if slowest is None
            else _position(self.members[slowest])
        )
        clock, batches = min([behind, *apart])
        self.live[worker] = Member(
            clock, self.slow, Telemetry(), arrival=self.received, batches=batches
        )
        self._enter(worker)

    def leave(self, worker: str) -> None:
        """Remove a live worker; remember a push that it may have in flight."""
        member = self.live[worker]
        computes = worker in self.computing or worker in self.outdated
        if worker in self.members:
            self._withdraw(worker)
        self.suspended.pop(worker, None)
        self.outdated.pop(worker, None)
        del self.live[worker]
        self.departed[worker] = member.clock if computes else None

    def push(self, event: Pushed) -> Push:
        """Buffer a push and return its name; a computing member becomes held, one clock further."""
        worker, clock = push = event.worker, event.clock
        self.buffered[push] = event
        self.received = received = self.received + 1
        member = self.members.get(worker)
        if member is None:
            self._push_of_nonmember(event)
            return push
        former = member.pace
        member.pace = pace = former + 1
        member.clock = clock + 1
        member.batches += event.steps
        member.base, member.arrival = event.base, received
        member.telemetry.push(self.now, event.busy_s)
        del self.computing[worker]
        # as `_hold` does, without a call
        self.held[worker] = self._held_at.setdefault(pace, {})[worker] = None
        population = self._population
        population[pace] = population.get(pace, 0) + 1
        if pace > self.fast:
            self.fast = pace
        if (left := population[former]) > 1:  # as `_leave_pace` does, likewise
            population[former] = left - 1
        else:
            self._leave_pace(former)
        return push

    def execute(self, decision: Decision) -> Decision:
        """Carry out a legal decision on the roster; return it stamped."""
        return EXECUTE[type(decision)](self, decision)

    def _drop(self, decision: Drop) -> Drop:
        push = decision.push
        del self.buffered[push]
        self.dropped += 1
        if decision.reason == "stale" and push[0] in self.held:
            self._take_back(push)
        return decision

    def _take_back(self, push: Push) -> None:
        """Undo the pace of a held worker's latest push, dropped as stale: it repeats the step."""
        worker, clock = push
        member = self.members[worker]
        if member.clock != clock + 1 or member.arrival != self.received:
            return  # a push since then: leads were measured by this pace
        former, population = member.pace, self._population
        member.pace = pace = former - 1
        self._unhold(worker, former)
        self._hold(worker, pace)
        population[pace] = population.get(pace, 0) + 1
        self.slow = min(self.slow, pace)  # at most its value before this push
        self._leave_pace(former)
        while self.fast not in population:
            self.fast -= 1
        if self._slowest_at == pace:
            heappush(self._slowest, worker)

    def _switch(self, decision: Switch) -> Switch:
        """Set every lead to 0, and order all workers by arrival; clocks stay."""
        self.members = {
            worker: member for worker, member in self.live.items() if worker in self.members
        }
        for member in self.members.values():
            member.pace = self.slow
        self.fast = self.slow
        self._population = {self.slow: len(self.members)} if self.members else {}
        self._held_at, self._slowest_at = {}, -1
        held, self.held = self.held, {}
        for worker in sorted(held, key=lambda worker: self.members[worker].arrival):
            self._hold(worker, self.slow)
        return decision

    def _suspend(self, decision: Suspend) -> Suspend:
        worker = decision.worker
        if worker in self.computing:
            self.outdated[worker] = None
        self._withdraw(worker)
        self.suspended[worker] = decision.why
        return decision

    def _restore(self, decision: Restore) -> Restore:
        worker = decision.worker
        del self.suspended[worker]
        if worker not in self.outdated:
            self._enter(worker)
        return decision

    def _stay(self, decision: SetTimer | Hold | Note) -> SetTimer | Hold | Note:
        return decision

    def _apply(self, decision: Apply) -> Apply:
        before = samples = self.samples_applied
        buffered, pushes = self.buffered, decision.pushes
        for push in pushes:
            samples += buffered.pop(push).samples
        self.samples_applied = samples
        self.applied += len(pushes)
        self.version = version = self.version + 1
        if decision.publish:
            self.published = version
        return Apply(pushes, version, before, decision.phase, decision.publish, decision.weights)

    def _release(self, decision: Release) -> Release:
        worker, pull = decision.worker, decision.pull
        member = self.members[worker]
        pace, clock = member.pace, member.clock
        del self.held[worker]
        at_pace = self._held_at[pace]  # as `_unhold` does, without a call
        del at_pace[worker]
        if not at_pace:
            del self._held_at[pace]
        self.computing[worker] = None
        if pull:
            version = self.published
        else:
            version = member.base
            assert version >= 0, f"{worker} never pulled: its first Release must"
        steps = decision.steps
        member.version, member.pull, member.steps = version, pull, steps
        member.telemetry.released_at = self.now
        return Release(worker, clock, version, pull, decision.batch_size, steps, pace - self.slow)

    def _push_of_nonmember(self, event: Pushed) -> None:
        """End the step of a worker that is no member; a restored one becomes a member."""
        worker = event.worker
        if worker not in self.live:
            assert worker in self.departed, f"{worker} never joined"
            self.departed[worker] = None
            return
        member = self.live[worker]
        del self.outdated[worker]
        member.clock, member.base = event.clock + 1, event.base
        member.batches += event.steps
        member.arrival = self.received
        member.telemetry.push(self.now, event.busy_s)
        if worker not in self.suspended:
            member.telemetry = Telemetry()
            self._enter(worker)

    def _enter(self, worker: str) -> None:
        """Make a live worker a member: held, at the slowest pace."""
        member = self.members[worker] = self.live[worker]
        member.pace = self.slow
        self.fast = max(self.fast, self.slow)
        self._population[self.slow] = self._population.get(self.slow, 0) + 1
        if self._slowest_at == self.slow:
            heappush(self._slowest, worker)
        self._hold(worker, self.slow)

    def _withdraw(self, worker: str) -> None:
        """Remove a worker from the members and their counts; it stays live."""
        member = self.members[worker]
        if worker in self.computing:
            del self.computing[worker]
        else:
            self._unhold(worker, member.pace)
        del self.members[worker]
        self._leave_pace(member.pace)
        if not self.members:
            self.floor_clock, self.floor_batches = _position(member)
            self.slow = self.fast = member.pace
            return
        while self.fast not in self._population:
            self.fast -= 1

    def _hold(self, worker: str, pace: int) -> None:
        self.held[worker] = self._held_at.setdefault(pace, {})[worker] = None

    def _unhold(self, worker: str, pace: int) -> None:
        del self.held[worker]
        at_pace = self._held_at[pace]
        del at_pace[worker]
        if not at_pace:
            del self._held_at[pace]

    def _leave_pace(self, pace: int) -> None:
        """Count one member less at that pace; the slowest pace may rise."""
        population = self._population
        left = population[pace] - 1
        if left:
            population[pace] = left
            return
        del population[pace]
        while population and self.slow not in population:
            self.slow += 1

    def resume(self) -> None:
        """Give live workers the published weights; computing workers repeat their iteration."""
        for worker, member in self.live.items():
            member.base = self.published
            if worker in self.computing or worker in self.outdated:
                member.version, member.pull = self.published, True
                member.telemetry.released_at = self.now

    def dump(self) -> RosterState:
        """Return the state without what `load` recounts; it shares members with the roster."""
        copied = {name: getattr(self, name) for name in COPIED}
        return RosterState(
            **copied,
            live=self.live,
            members=list(self.members),
            computing=list(self.computing),
            held=list(self.held),
            outdated=list(self.outdated),
            buffered=[
                (worker, clock, Buffered(info.base, info.samples, info.steps))
                for (worker, clock), info in self.buffered.items()
            ],
        )

    @classmethod
    def load(cls, state: RosterState) -> Roster:
        """Build a roster from `dump`'s state, and take over its members."""
        roster = cls()
        for name in COPIED:
            setattr(roster, name, getattr(state, name))
        roster.live = state.live
        for worker in state.members:
            member = roster.members[worker] = roster.live[worker]
            roster._population[member.pace] = roster._population.get(member.pace, 0) + 1
        roster.computing = OrderedDict.fromkeys(state.computing)
        for worker in state.held:
            roster._hold(worker, roster.members[worker].pace)
        roster.outdated = dict.fromkeys(state.outdated)
        roster.buffered = {(worker, clock): info for worker, clock, info in state.buffered}
        return roster


def _position(member: Member) -> tuple[int, int]:
    return member.clock, member.batches


EXECUTE: Mapping[type, Callable[[Roster, Any], Decision]] = {
    Apply: Roster._apply,
    Drop: Roster._drop,
    Release: Roster._release,
    Hold: Roster._stay,
    SetTimer: Roster._stay,
    Switch: Roster._switch,
    Suspend: Roster._suspend,
    Restore: Roster._restore,
    Note: Roster._stay,
}
