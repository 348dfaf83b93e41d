"""The members of a run: which are computing, which are held, and which pushes are buffered.

Paradigms read the roster; only `Machine` calls the methods that change it. Nothing here scans all
members per push: the slowest and the fastest pace are counted, the held workers are kept by pace (a
bound on the lead bounds the number of paces), and the slowest worker comes from a heap that is
built once per pace (each rise of the slowest pace takes at least one push of every member, so that
is O(log n) amortised).

A worker's *clock* counts its pushes. Leads are differences of its *pace*, which counts those that
were not dropped as stale when they arrived, until a Switch sets all paces equal.

A suspended worker is live, but no member: for paradigms it is neither computing nor held, and no
lead is measured from it. A worker that was restored during a step is a member again once the push
of that step has arrived.
"""

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


class Member(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One live worker."""

    clock: Whole
    """The iteration that it computes, or waits to start."""
    pace: Whole
    telemetry: Telemetry
    version: Whole = -1
    """The oldest model version that its running iteration may have read; -1 before the first
    Release."""
    base: Whole = -1
    """The model version of its latest push."""
    pull: bool = True
    """Whether its latest Release pulled."""
    steps: Whole | None = None
    """The steps that its latest Release named."""
    batches: Whole = 0
    """The batches that its slot has met before its running iteration, which begins with the batch
    of this number; the same as the clock if each iteration takes one."""
    arrival: Whole = 0
    """The number of pushes received from all workers up to its latest push, or else up to its
    joining."""


class Buffered(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What a snapshot keeps of a push that has arrived and is neither applied nor dropped."""

    base: Whole
    """The model version that it was computed on, for paradigms that look at staleness."""
    samples: Whole
    steps: Whole = 1


class RosterState(msgspec.Struct, forbid_unknown_fields=True):
    """The state of a roster in a snapshot; the fields are those of `Roster`."""

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


COUNTED = RosterState.__struct_fields__[:14]
"""The fields that a roster and its state have alike: up to `suspended`."""


class Roster:
    """The state of the members. Iteration is deterministic: in order of arrival unless stated
    otherwise.

    Until the next Switch, restored workers come after those that have taken part all along.
    """

    def __init__(self, workload_samples: int | None = None) -> None:
        self.workload_samples = workload_samples
        self.now = 0.0
        """Seconds since the run began: the time of the current event."""
        self.version = 0
        """The number of updates so far."""
        self.published = 0
        """The version that workers pull: the newest, unless an Apply was not published."""
        self.samples_applied = 0
        self.received = 0
        self.applied = 0
        self.dropped = 0
        """Numbers of pushes; received = applied + dropped + len(buffered), always."""
        self.slow = 0
        """The smallest pace of the members. It never falls between two Switches."""
        self.fast = 0
        """The largest pace of the members."""
        self.floor_clock = 0
        """The clock at which a newcomer starts when there is no member."""
        self.floor_batches = 0
        """The batches that count as met, then."""
        self.live: dict[str, Member] = {}
        """The workers that have joined and not left."""
        self.members: dict[str, Member] = {}
        """The live workers that take part: all but the suspended, and the restored whose old step
        is not over."""
        self.computing: OrderedDict[str, None] = OrderedDict()
        self.held: dict[str, None] = {}
        self.buffered: dict[Push, Pushed | Buffered] = {}
        """The pushes that have arrived and are neither applied nor dropped."""
        self.departed: dict[str, int | None] = {}
        """The workers that have left -> the clock of a push that is still in flight."""
        self.suspended: dict[str, str] = {}
        """The suspended workers -> the reason."""
        self.outdated: dict[str, None] = {}
        """The workers at a step from before their suspension, restored meanwhile or not: the push
        of that step will be dropped."""
        self._population: dict[int, int] = {}
        self._held_at: dict[int, dict[str, None]] = {}
        self._slowest: list[str] = []
        self._slowest_at = -1

    @property
    def progress(self) -> float | None:
        """The samples in applied pushes / the samples of the workload; None without a workload."""
        return (
            None if self.workload_samples is None else self.samples_applied / self.workload_samples
        )

    @property
    def returning(self) -> set[str]:
        """The restored workers that take part again as soon as their step from before is over."""
        return self.outdated.keys() - self.suspended.keys()

    def clock(self, worker: str) -> int:
        """Return the number of pushes received from the worker, counted from the clock at which it
        joined.
        """
        return self.members[worker].clock

    def lead(self, worker: str) -> int:
        """Return how many clocks the worker is ahead of the slowest member."""
        return self.members[worker].pace - self.slow

    def is_fastest(self, worker: str) -> bool:
        """Say whether no member is further ahead."""
        return self.members[worker].pace == self.fast

    def telemetry(self, worker: str) -> Telemetry:
        """Return the worker's row of the telemetry table."""
        return self.members[worker].telemetry

    def slowest_worker(self) -> str | None:
        """Return the member with the smallest pace; of several, the first by id; None: there is no
        member.
        """
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
        """Return the held workers whose lead is at most that, the furthest behind first, then in
        order of arrival.
        """
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

    def names(self, workers: Iterable[str], count: int) -> str:
        """Return up to three names of `count` workers, for the reason of a Hold."""
        names = ", ".join(islice(workers, NAMES_SHOWN))
        return names if count <= NAMES_SHOWN else f"{names} and {count - NAMES_SHOWN} more"

    def count_held_within(self, lead: int) -> int:
        """Return the number of held workers whose lead is at most that."""
        limit = self.slow + lead
        return sum(len(workers) for pace, workers in self._held_at.items() if pace <= limit)

    def join(self, worker: str) -> None:
        """Add a held member at the slowest member's clock, or at that of a suspended worker further
        behind.
        """
        slowest = self.slowest_worker()
        apart = [_position(self.live[each]) for each in (*self.suspended, *self.outdated)]
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
        """Remove a live worker; remember the push it may have in flight."""
        member = self.live[worker]
        computes = worker in self.computing or worker in self.outdated
        if worker in self.members:
            self._withdraw(worker)
        self.suspended.pop(worker, None)
        self.outdated.pop(worker, None)
        del self.live[worker]
        self.departed[worker] = member.clock if computes else None

    def push(self, event: Pushed) -> Push:
        """Buffer a push that has arrived, and return its name. A member that computed is then held,
        one clock further.
        """
        worker, clock = push = event.worker, event.clock
        self.buffered[push] = event
        self.received = received = self.received + 1
        member = self.members.get(worker)
        if member is None:
            self._push_apart(event)
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
        if (left := population[former]) > 1:  # as `_step_from` does, likewise
            population[former] = left - 1
        else:
            self._step_from(former)
        return push

    def execute(self, decision: Decision) -> Decision:
        """Carry out what a legal decision means for the roster; return the decision, stamped."""
        return EXECUTE[type(decision)](self, decision)

    def _drop(self, decision: Drop) -> Drop:
        push = decision.push
        del self.buffered[push]
        self.dropped += 1
        if decision.reason == "stale" and push[0] in self.held:
            self._take_back(push)
        return decision

    def _take_back(self, push: Push) -> None:
        """Set a held worker's pace back to that before a push which has just arrived: its step is
        as good as not made. `slow` is then at most what it was before that push.
        """
        worker, clock = push
        member = self.members[worker]
        if member.clock != clock + 1 or member.arrival != self.received:
            return  # others have measured their leads by it meanwhile
        former, population = member.pace, self._population
        member.pace = pace = former - 1
        self._unhold(worker, former)
        self._hold(worker, pace)
        population[pace] = population.get(pace, 0) + 1
        self.slow = min(self.slow, pace)
        self._step_from(former)
        while self.fast not in population:
            self.fast -= 1
        if self._slowest_at == pace:
            heappush(self._slowest, worker)

    def _switch(self, decision: Switch) -> Switch:
        self._rebase()
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

    def _push_apart(self, event: Pushed) -> None:
        """End the step of a worker that is no member; if it was restored, it becomes one."""
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
        """Make a live worker a member: held, at the pace of the slowest."""
        member = self.members[worker] = self.live[worker]
        member.pace = self.slow
        self.fast = max(self.fast, self.slow)
        self._population[self.slow] = self._population.get(self.slow, 0) + 1
        if self._slowest_at == self.slow:
            heappush(self._slowest, worker)
        self._hold(worker, self.slow)

    def _withdraw(self, worker: str) -> None:
        """Remove a worker from the members."""
        member = self.members[worker]
        if worker in self.computing:
            del self.computing[worker]
        else:
            self._unhold(worker, member.pace)
        del self.members[worker]
        self._step_from(member.pace)
        if not self.members:
            self.floor_clock, self.floor_batches = _position(member)
            self.slow = self.fast = member.pace
        while self.members and self.fast not in self._population:
            self.fast -= 1

    def _rebase(self) -> None:
        """Set every lead to 0 as a Switch does, and order all workers by arrival. Clocks do not
        change.
        """
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

    def _hold(self, worker: str, pace: int) -> None:
        self.held[worker] = self._held_at.setdefault(pace, {})[worker] = None

    def _unhold(self, worker: str, pace: int) -> None:
        del self.held[worker]
        at_pace = self._held_at[pace]
        del at_pace[worker]
        if not at_pace:
            del self._held_at[pace]

    def _step_from(self, pace: int) -> None:
        """Take in that one member is no longer at that pace: `slow` may rise."""
        population = self._population
        left = population[pace] - 1
        if left:
            population[pace] = left
            return
        del population[pace]
        while population and self.slow not in population:
            self.slow += 1

    def resume(self) -> None:
        """Let every live worker have the published weights, and those that compute begin their
        iteration again.
        """
        for worker, member in self.live.items():
            member.base = self.published
            if worker in self.computing or worker in self.outdated:
                member.version, member.pull = self.published, True
                member.telemetry.released_at = self.now

    def dump(self) -> RosterState:
        """Return the state, without what can be recounted. It shares members with the roster."""
        counted = {name: getattr(self, name) for name in COUNTED}
        return RosterState(
            **counted,
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
        """Build the roster that `dump` described, which is its own from here on."""
        roster = cls()
        for name in COUNTED:
            setattr(roster, name, getattr(state, name))
        roster.live = state.live
        for worker in state.members:
            row = roster.members[worker] = roster.live[worker]
            roster._population[row.pace] = roster._population.get(row.pace, 0) + 1
        roster.computing = OrderedDict.fromkeys(state.computing)
        for worker in state.held:
            roster._hold(worker, roster.members[worker].pace)
        roster.outdated = dict.fromkeys(state.outdated)
        roster.buffered = {(worker, clock): info for worker, clock, info in state.buffered}
        return roster


def _position(member: Member) -> tuple[int, int]:
    """Return how far a worker is: clock, and batches."""
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
"""Type of a decision -> the method that carries it out."""
