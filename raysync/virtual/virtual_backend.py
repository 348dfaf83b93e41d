"""A small Ray on a virtual clock: actors, calls, and values that travel over links.

Differences from Ray: decisions and evaluations take no time, and neither do restarts beyond the
experiment's `start_s`. An input travels from the moment of the call that needs it, as Ray fetches
it then, unless `deliver` has brought it before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any
from weakref import WeakValueDictionary

from raysync.engine.backend import Failure
from raysync.engine.error_text import reason
from raysync.engine.messages import Message
from raysync.step_fault import NO_FAULT, StepFault
from raysync.virtual.transfers import AnyRoute, FairRoute, PhaseNetwork, VirtualTransit
from raysync.virtual.virtual_calls import (
    VirtualCall,
    copy_results,
    follow,
    is_computed,
    load_state,
    notify_followers,
    state_of,
)
from raysync.virtual.virtual_processes import (
    Actor,
    PendingCall,
    ProcessEnd,
    VirtualProcesses,
    death_of,
)

REPORT_EVERY = 20  # lines of a report: few, so that a short run is seen to proceed
# The most lines of a report if nothing is computed, and a hundredth of the events so far if that is
# less: each line costs as much as some pushes.
MOST_LINES = 100

# an input in transit: its route, if it has one, and the route's faults
InputInTransit = tuple[VirtualCall, AnyRoute | None, StepFault]


class VirtualBackend:
    """The world of one run in virtual time.

    A call begins once its actor is free and its inputs have reached the actor's site, lasts for the
    actor's `cost`, and leaves its values there. As inputs come from earlier calls, its end is known
    at once, without events, unless an input shares links with later transfers: then the call is
    *pending*, and so are those behind it, until all its inputs have arrived. Where a run trains, a
    call computes at its end.

    A heap of (time, sequence number, callback, argument) is the only source of time, and random
    values are hashed from the seed: every run of an experiment is the same (on one machine, with
    one number of torch threads).
    """

    def __init__(
        self,
        network_of: Callable[[str], PhaseNetwork],  # a phase -> its network, when it begins
        make: Callable[[str], Actor],  # creates an actor by its id, also at a restart
        *,
        phase: str = "",  # the first
        computes: bool,  # False: calls only take time
        # actor -> the ends of its successive processes; others do not end
        ends: Mapping[str, Sequence[ProcessEnd]] | None = None,
        began_at: float = 0.0,  # the run's time at which it resumes, in seconds
        # a worker -> the seconds that its restart takes
        start_s: Callable[[str], float] = lambda worker: 0.0,
    ) -> None:
        self.computes, self.now = computes, began_at
        self.processes = VirtualProcesses(self, make, ends or {}, start_s)
        self.transit = VirtualTransit(self, network_of, phase)
        self._of_actor = self.processes.of_actor  # at hand: it is looked up in each call
        self._queue: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._scheduled = 0
        self._called = 0
        # number of a computing call -> the call, while anything refers to it
        self._calls: WeakValueDictionary[int, VirtualCall] = WeakValueDictionary()
        # see `reenact`; None: calls compute
        self._reenacts: Callable[[Message, Any], Any] | None = None

    # ---- time ----

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        self._scheduled += 1
        heappush(self._queue, (at, self._scheduled, happens, argument))

    def wait(self) -> None:
        # where nothing is computed, several events at once
        queue = self._queue
        assert queue, "the event queue is empty"
        for _ in range(1 if self.computes else min(REPORT_EVERY, len(queue))):
            self.now, _, happens, argument = heappop(queue)
            happens(argument)

    @property
    def processed(self) -> int:
        """The number of events so far, including the current one."""
        return self._scheduled - len(self._queue)

    def is_report_due(self, lines: int) -> bool:
        # nobody watches virtual seconds pass, so lines are counted
        if lines < REPORT_EVERY or self.computes:
            return lines >= REPORT_EVERY
        return lines >= MOST_LINES or 100 * lines >= self._scheduled

    # ---- calls ----

    def call(self, actor: str, message: Message, inputs: Sequence[Any] = ()) -> VirtualCall:
        process = self._of_actor.get(actor) or self.processes.start(actor)
        cost, routes = process.cost, process.routes
        begin = now = self.now
        if process.free_at > begin:
            begin = process.free_at
        first_s, second_s, fault, value_fault, answer = cost(message, inputs)
        if fault is None:
            routes, fault = None, NO_FAULT
        in_transit: list[InputInTransit] = []
        for value in inputs:
            at, route = value.at, routes.get(value.site) if routes else None
            if route is not None:
                both = fault if value.fault is NO_FAULT else fault.combine(value.fault)
                if at < inf and not isinstance(route, FairRoute):
                    at = route.arrival(at if at > now else now, both)
                else:
                    in_transit.append((value, route, both))
                    continue
            elif value.followers is not None:
                in_transit.append((value, None, fault))
                continue
            if at > begin:
                begin = at
        site, is_known = process.site, not (in_transit or process.pending)
        if is_known and not (self.processes.fail or self.computes):
            process.free_at = begin + first_s + second_s
            return VirtualCall(process.free_at, site, value_fault, answer)
        call = VirtualCall(inf, site, value_fault, answer)
        pending = PendingCall(
            call=call,
            actor=actor,
            process=process,
            message=message,
            inputs=inputs,
            begin=begin,
            first_s=first_s,
            second_s=second_s,
            end=self.processes.end_of(actor),
            missing=len(in_transit),
        )
        if is_known:
            self._settle(pending)
        else:
            self._await_inputs(pending, in_transit)
        return call

    def _await_inputs(self, pending: PendingCall, in_transit: Sequence[InputInTransit]) -> None:
        """Let a call begin once its inputs have come, and those before it are done."""
        call, end = pending.call, pending.end
        call.followers = []
        pending.process.pending.append(pending)
        for value in in_transit:
            follow(value[0], self._send, (pending, value))
        if call.followers is not None and end is not None and not end.freezes:
            self.schedule(max(end.at, self.now), self._die, pending)

    def _send(self, pending_and_input: tuple[PendingCall, InputInTransit]) -> None:
        """Send an input of a pending call, whose time is now known."""
        pending, (value, route, fault) = pending_and_input
        begin = max(value.at, self.now)
        if route is None or begin == inf:  # what never comes holds up nothing
            self._arrive(pending, begin)
        elif isinstance(route, FairRoute):
            route.send(self, begin, fault, self._arrive, pending)
        else:
            self._arrive(pending, route.arrival(begin, fault))

    def _arrive(self, pending: PendingCall, at: float) -> None:
        """Note the arrival of an input, and start calls that are complete."""
        pending.begin = max(pending.begin, at)
        pending.missing -= 1
        process, queue = pending.process, pending.process.pending
        while queue and not queue[0].missing:
            following = queue.popleft()
            following.begin = max(following.begin, process.free_at)
            self._settle(following)

    def _settle(self, pending: PendingCall) -> None:
        """Set the end of a call, whose beginning is known."""
        call, process = pending.call, pending.process
        call.at = process.free_at = pending.begin + pending.first_s + pending.second_s
        if self.processes.fail:
            self._fail_or_freeze(pending)
        if self.computes and call.at < inf:
            self._called += 1
            self._calls[self._called] = call
            self.schedule(call.at, self._compute, pending)
        self.notify(call)

    def _fail_or_freeze(self, pending: PendingCall) -> None:
        """Fail a call if an input failed, or if its process ends first."""
        call, end = pending.call, pending.end
        failures = (each.answer for each in pending.inputs if isinstance(each.answer, Failure))
        if (failed := next(failures, None)) is not None:
            call.answer = failed
            call.at = pending.process.free_at = pending.begin
        if end is not None and call.at > end.at:
            if end.freezes:
                call.at = inf
            else:
                call.answer = death_of(pending.actor)
                call.at = max(end.at, self.now)

    def _die(self, pending: PendingCall) -> None:
        """Fail a call that still waits for inputs as its process ends."""
        call, process = pending.call, pending.process
        if pending in process.pending:
            process.pending.remove(pending)
            call.at = process.free_at = self.now
            call.answer = death_of(pending.actor)
            self.notify(call)

    def notify(self, call: VirtualCall) -> None:
        """Notify whatever waits for the end of a call, now known."""
        watchers, call.watchers = call.watchers, ()
        if call.followers:
            notify_followers(call)
        call.followers = None
        for index in range(0, len(watchers), 2):
            self.watch(call, watchers[index], watchers[index + 1])

    def watch(self, call: VirtualCall, then: Callable[[Any], None], argument: Any) -> None:
        if call.at < inf:
            self._scheduled += 1
            heappush(self._queue, (call.at, self._scheduled, then, argument))
        elif call.followers is not None:
            call.watchers += (then, argument)
        elif call.arrives_at is not None:
            self.schedule(call.arrives_at, self.transit.receive_push, (call, then, argument))

    def _compute(self, task: PendingCall) -> None:
        call, message, inputs = task.call, task.message, task.inputs
        if call.moved is not None:
            return  # it was lost, and is computed by another
        failed = [each.answer for each in (call, *inputs) if isinstance(each.answer, Failure)]
        if failed:
            call.answer = failed[0]
            return
        if self._reenacts is not None:
            call.answer = self._reenacts(message, call.answer)
            return
        try:
            values = [each.computed for each in inputs]
            computed = task.process.actor.compute(message, values, call.answer)
            call.values, call.answer = computed
        except Exception as error:
            call.answer = Failure("raised", reason(error), task.actor)

    def is_done(self, call: VirtualCall) -> bool:
        return call.at <= self.now

    def failure(self, call: VirtualCall, patience_s: float) -> Failure | None:
        if call.at > self.now + patience_s:
            raise TimeoutError(f"it is done at {call.at:g} s")
        return call.answer if isinstance(call.answer, Failure) else None

    def repeat(
        self, lost: VirtualCall | None, server: str, message: Message, inputs: Sequence[Any] = ()
    ) -> VirtualCall:
        call = self.call(server, message, inputs)
        if lost is not None:
            lost.moved = call
            lost.site, lost.fault = call.site, call.fault
            if call.followers is not None:
                lost.at, lost.followers = inf, lost.followers or []
            follow(call, self._follow_retry, (lost, call))
        return call

    def _follow_retry(self, calls: tuple[VirtualCall, VirtualCall]) -> None:
        """Give a lost call the end and answer of its retry."""
        lost, call = calls
        lost.at, lost.answer = call.at, call.answer
        if call.at < inf:
            self.schedule(call.at, copy_results, (lost, call))
        self.notify(lost)

    # ---- what a resumed run repeats, and loads ----

    @property
    def is_reenacting(self) -> bool:
        return self._reenacts is not None

    def reenact(
        self, events: int, answered: Callable[[Message, Any], Any], until: float = inf
    ) -> None:
        """Process the first events of a run again without computing: calls take time, and leave no
        values.

        Args:
            events: the number of processed events to reach.
            answered: maps a message, and its answer by `cost`, to the answer.
            until: the latest time of an event, in seconds since the run began.
        """
        self._reenacts = answered
        while self.processed < events and self._queue and self._queue[0][0] <= until:
            self.now, _, happens, argument = heappop(self._queue)
            happens(argument)
        self._reenacts = None

    def state(self) -> dict[str, Any]:
        """Return all computed results that later calls, or the driver, may still need."""
        return {
            "actors": {name: each.actor.state() for name, each in self._of_actor.items()},
            "calls": {
                str(number): state_of(call)
                for number, call in self._calls.items()
                if is_computed(call)
            },
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state`, once the run has been reenacted up to there."""
        for name, saved in state["actors"].items():
            self._of_actor[name].actor.load_state(saved)
        for number, saved in state["calls"].items():
            if call := self._calls.get(int(number)):
                load_state(call, saved)
