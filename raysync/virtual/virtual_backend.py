"""A small Ray on a virtual clock: actors, calls, and values that travel over links.

Differences from Ray: decisions and evaluations take no time, and neither do restarts beyond the
experiment's `start_s`. An input travels from the moment of the call that needs it, as Ray fetches
it then, unless `deliver` has brought it before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol
from weakref import WeakValueDictionary

from msgspec import Struct

from raysync.engine.backend import Availability, Failure
from raysync.engine.error_text import reason
from raysync.engine.messages import Message, RestoreCall, StepReport
from raysync.step_fault import NO_FAULT, StepFault
from raysync.virtual.transfers import AnyRoute, FairRoute, PhaseNetwork

REPORT_EVERY = 20  # lines of a report: few, so that a short run is seen to proceed
# The most lines of a report if nothing is computed, and a hundredth of the events so far if that is
# less: each line costs as much as some pushes.
MOST_LINES = 100

Following = tuple[Callable[[Any], None], Any]  # a callback and its argument
# The cost of a call: the seconds of its two parts in turn, such as forward and backward; the faults
# of the routes of its inputs (None: they are there at once, over no link) and of its values; its
# answer, if nothing is computed.
Cost = tuple[float, float, StepFault | None, StepFault, Any]


class Actor(Protocol):
    """A virtual actor: the times of its methods and, where a run trains, their computations."""

    site: str  # its place in the network: nothing travels within a site

    def cost(self, message: Message, inputs: Sequence[Any]) -> Cost: ...

    def compute(
        self, message: Message, inputs: list[Any], answer: Any
    ) -> tuple[Sequence[Any], Any]:
        """Return the values of a call and its answer, given the answer of its cost."""

    def state(self) -> dict[str, Any]:
        """Return the state of later computations: tensors, and JSON-native data."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Load a state, into an actor of which so far only `cost` was called."""


class Process:
    """The process of an actor, with what each call needs at hand."""

    def __init__(self, actor: Actor, routes: Mapping[str, AnyRoute] | None) -> None:
        self.actor, self.cost, self.site = actor, actor.cost, actor.site
        # source -> the route from there, in the current phase; None: no routes
        self.routes = routes
        # the end of all calls that are not pending, in seconds since the run began
        self.free_at = 0.0
        self.pending: deque[PendingCall] = deque()  # its calls of unknown end, in order


# A call is in one of four states:
#
# * its end is unknown: `followers` is a list, `at` is infinity;
# * its end is known: `followers` is None;
# * a push that arrived and waits for the coordinator: `arrives_at` is set, `at` is infinity;
# * it never ends, as its process froze: `followers` is None, `at` is infinity.
class VirtualCall(Struct, eq=False, weakref=True):
    """A call, and the first of its values."""

    at: float  # its end, in seconds since the run began; infinity: never, or unknown
    site: str = ""
    fault: StepFault = NO_FAULT  # of the route of its values
    answer: Any = None
    values: Sequence[Any] | None = None  # None: not computed yet, or nothing is
    moved: VirtualCall | None = None  # the retry that replaces it
    # the arrival of a push, while it waits for the coordinator; `at` is infinity meanwhile
    arrives_at: float | None = None
    # callbacks for when its end is known; None: it is known
    followers: list[Following] | None = None
    # callbacks for its end, each followed by its argument, while the end is unknown
    watchers: tuple[Any, ...] = ()

    def value(self, index: int) -> VirtualCall | OtherValue:
        return self if index == 0 else OtherValue(self, index)

    @property
    def computed(self) -> Any:
        assert self.values is not None, "nothing is computed"
        return self.values[0]


def follow(value: VirtualCall | OtherValue, then: Callable[[Any], None], argument: Any) -> None:
    """Call `then(argument)` once the time of a value is known."""
    if value.followers is None:
        then(argument)
    else:
        value.followers.append((then, argument))


def notify_followers(value: VirtualCall | OtherValue) -> None:
    """Notify the followers of a value, whose time is now known."""
    followers, value.followers = value.followers or (), None
    for then, argument in followers:
        then(argument)


class OtherValue:
    """A further value of a call."""

    def __init__(self, call: VirtualCall, index: int) -> None:
        self._call, self._index = call, index
        self.at, self.site, self.fault = call.at, call.site, call.fault
        self.followers: list[Following] | None = None  # see `VirtualCall.followers`
        if call.followers is not None:
            self.followers = []
            call.followers.append((self._take_end, call))

    def _take_end(self, call: VirtualCall) -> None:
        self.at = call.at
        notify_followers(self)

    @property
    def answer(self) -> Any:
        return self._call.answer

    @property
    def computed(self) -> Any:
        assert self._call.values is not None, "nothing is computed"
        return self._call.values[self._index]


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of an actor's process, which fails its unfinished calls, or freezes them for ever."""

    at: float  # seconds since the run began
    freezes: bool = False  # without a sign, rather than a death that is noticed


def _death(actor: str) -> Failure:
    return Failure("died", "its actor died", actor)


class PendingCall(Struct, eq=False):
    """A call with what its end depends on; it may have to wait for its inputs."""

    call: VirtualCall
    actor: str
    process: Process
    message: Message
    inputs: Sequence[Any]
    begin: float  # its earliest beginning, as far as known
    first_s: float  # the seconds of its two parts: see `Cost`
    second_s: float
    end: ProcessEnd | None  # the end of its process
    missing: int  # the number of inputs whose arrival is unknown


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
        self.computes = computes
        self._processes: dict[str, Process] = {}
        self._network_of = network_of
        self.enter_phase(phase)
        self._coordinator_free_at = 0.0  # when the coordinator has received all pushes so far
        self._make = make
        self._start_s = start_s
        # actor -> the ends of its processes, the current one first
        self._ends = {actor: list(each) for actor, each in (ends or {}).items()}
        self._fails = bool(ends)  # whether calls can fail because a process ends
        self._queue: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._scheduled = 0
        self._called = 0
        # number of a computing call -> the call, while anything refers to it
        self._calls: WeakValueDictionary[int, VirtualCall] = WeakValueDictionary()
        # see `reenact`; None: calls compute
        self._reenacts: Callable[[Message, Any], Any] | None = None
        self.now = began_at

    # ---- time ----

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        self._scheduled += 1
        heappush(self._queue, (at, self._scheduled, happens, argument))

    def schedule_deadline(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        if self._fails:  # else nobody is silent, and a slow link is slow
            self.schedule(at, happens, argument)

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
        process = self._processes.get(actor) or self._start(actor)
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
        if is_known and not (self._fails or self.computes):
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
            end=self._end_of(actor),
            missing=len(in_transit),
        )
        if is_known:
            self._settle(pending)
        else:
            self._await_inputs(pending, in_transit)
        return call

    def _end_of(self, actor: str) -> ProcessEnd | None:
        ends = self._ends.get(actor)
        return ends[0] if ends else None

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
        if self._fails:
            self._fail_or_freeze(pending)
        if self.computes and call.at < inf:
            self._called += 1
            self._calls[self._called] = call
            self.schedule(call.at, self._compute, pending)
        self._notify(call)

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
                call.answer = _death(pending.actor)
                call.at = max(end.at, self.now)

    def _die(self, pending: PendingCall) -> None:
        """Fail a call that still waits for inputs as its process ends."""
        call, process = pending.call, pending.process
        if pending in process.pending:
            process.pending.remove(pending)
            call.at = process.free_at = self.now
            call.answer = _death(pending.actor)
            self._notify(call)

    def _notify(self, call: VirtualCall) -> None:
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
            self.schedule(call.arrives_at, self._receive_push, (call, then, argument))

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

    # ---- values on their way ----

    def enter_phase(self, phase: str) -> None:
        # what is in transit stays as it is
        network = self._network_of(phase)
        self._paths, self._push_s = network.paths, network.push_s
        self.delivers = network.changes or self._push_s > 0 or any(self._paths.values())
        for process in self._processes.values():
            process.routes = self._paths.get(process.site)

    def late_s(self, value: VirtualCall) -> float:
        late_s = value.at - self.now
        return late_s if 0.0 < late_s < inf else 0.0  # inf: of a server that was lost

    def deliver(self, value: VirtualCall, actor: str) -> tuple[VirtualCall, ...]:
        # The coordinator receives values in the order of their arrival, so a delivery's end is
        # unknown until then.
        process = self._processes.get(actor) or self._start(actor)
        site, routes = process.site, process.routes
        route = routes.get(value.site) if routes else None
        value.site = site
        if isinstance(route, FairRoute):
            delivery = VirtualCall(inf, site, followers=[])
            value.at, value.followers = inf, []
            route.send(self, self.now, value.fault, self._delivered, (value, delivery))
            return (delivery,)
        value.at = at = self.now if route is None else route.arrival(self.now, value.fault)
        if self._push_s:
            return (VirtualCall(inf, site, arrives_at=at),)
        return (VirtualCall(at, site),) if at > self.now else ()

    def _delivered(self, sent: tuple[VirtualCall, VirtualCall], at: float) -> None:
        """Note the arrival of a value at its server."""
        value, delivery = sent
        value.at = at
        if self._push_s:
            delivery.arrives_at = at
        else:
            delivery.at = at
        self._notify(value)
        self._notify(delivery)

    def _receive_push(self, waiting: tuple[VirtualCall, Callable[[Any], None], Any]) -> None:
        """Let the coordinator receive a push that has arrived, after those before it."""
        delivery, then, argument = waiting
        self._coordinator_free_at = max(self.now, self._coordinator_free_at) + self._push_s
        delivery.at = self._coordinator_free_at
        self.watch(delivery, then, argument)

    # ---- processes ----

    def availability(self, worker: str) -> Availability:
        return "free"

    def watch_nodes(
        self, drained: Callable[[str], None], lost: Callable[[str, Sequence[str]], None]
    ) -> None: ...  # no node is ever drained or lost

    def spawn(self, worker: str) -> VirtualCall:
        return self._ready(self._start_s(worker))

    def _ready(self, after_s: float) -> VirtualCall:
        return VirtualCall(self.now + after_s)

    def _start(self, name: str) -> Process:
        actor = self._make(name)
        process = Process(actor, self._paths.get(actor.site))
        self._processes[name] = process
        return process

    def end_at(self, worker: str, at: float) -> None:
        # called before the first call of the worker
        self._fails = True
        self._ends[worker] = [ProcessEnd(at)]

    def kill(self, actor: str) -> None:
        self._end_process(actor)
        self._free_waiting()

    def restart(self, actor: str, *base: Any, freezes: bool = False) -> VirtualCall:
        # ready at once
        self._end_process(actor)
        self._free_waiting()
        return self.call(actor, RestoreCall(), base) if base else self._ready(0.0)

    def _end_process(self, actor: str) -> None:
        """Forget the current process of an actor, and its end."""
        if self._processes.pop(actor, None) is None:
            return
        if ends := self._ends.get(actor):
            del ends[0]
            if not ends:
                del self._ends[actor]

    def _free_waiting(self) -> None:
        """Let the processes that wait for a value of a frozen one take calls again."""
        for process in self._processes.values():
            if process.free_at == inf:
                process.free_at = self.now

    def can_lose(self, server: str) -> bool:
        return self.computes and server in self._ends

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
            self.schedule(call.at, _copy_results, (lost, call))
        self._notify(lost)

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
            "actors": {name: each.actor.state() for name, each in self._processes.items()},
            "calls": {
                str(number): _state_of(call)
                for number, call in self._calls.items()
                if _is_computed(call)
            },
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state`, once the run has been reenacted up to there."""
        for name, saved in state["actors"].items():
            self._processes[name].actor.load_state(saved)
        for number, saved in state["calls"].items():
            if call := self._calls.get(int(number)):
                _load_state(call, saved)


def _is_computed(call: VirtualCall) -> bool:
    # files of states only leave the run, so they are no values
    if call.values is None:
        return isinstance(call.answer, Failure)
    return not any(isinstance(each, bytes) for each in call.values)


def _state_of(call: VirtualCall) -> dict[str, Any]:
    if isinstance(call.answer, Failure):
        return {"failure": astuple(call.answer)}
    assert call.values is not None, "nothing is computed"
    answer, values = call.answer, {"values": list(call.values), "count": len(call.values)}
    if isinstance(answer, StepReport):
        return values | {"step": [answer.loss, answer.busy_s]}
    return values | {"answer": answer}


def _load_state(call: VirtualCall, state: Mapping[str, Any]) -> None:
    if "failure" in state:
        call.answer = Failure(*state["failure"])
    else:
        call.values = state["values"]
        if len(call.values) != state.get("count", len(call.values)):
            raise ValueError("a value of a call is missing")
        call.answer = StepReport(*state["step"]) if "step" in state else state["answer"]


def _copy_results(calls: tuple[VirtualCall, VirtualCall]) -> None:
    """Copy the results of a retry to the lost call."""
    lost, call = calls
    if lost.moved is call:
        lost.answer, lost.values = call.answer, call.values
