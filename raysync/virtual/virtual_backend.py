"""A small Ray on a virtual clock: actors, calls, and values that travel over links to where they
are needed.

    call     begins once its actor is free, and its inputs have reached the actor's site; lasts as
             long as the actor's `cost` says; leaves its values at that site
    watch    calls back when the call is done
    wait     moves the clock to the next scheduled event

It knows no paradigm, no topology and no push: the driver issues the same calls as on Ray. The
inputs of a call come from earlier calls, so its end is known at once, without events in between,
unless an input shares links with what others send meanwhile: then the call is *pending*, and so are
those behind it, until all of its inputs have come. Where a run trains, a call computes at its end.
A heap of (time, sequence number, callback, argument) is processed in order; nothing else moves the
clock, and random values are hashed from the seed, so every run of an experiment is the same (on one
machine, with one number of torch threads).

Differences from Ray: decisions and their way to a worker take no time, nor do evaluations, and a
worker that is started anew is ready after the time that the experiment says. An input travels from
the moment of the call that needs it, since Ray fetches it then, unless `deliver` has brought it
earlier: then it is at the actor's site.
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

from raysync.engine.backend import Failure, Room
from raysync.engine.error_text import reason
from raysync.engine.messages import Message, RestoreCall, StepReport
from raysync.step_fault import NO_FAULT, StepFault
from raysync.virtual.transfers import AnyWay, FairWay, PhaseNetwork

REPORT_EVERY = 20
"""The lines of a report: few, so that those who watch a short run see it go on."""
MOST_LINES = 100
"""The lines of a report, at most, where nothing is computed: then those of a long run are a
hundredth of it, since each takes as long as some pushes."""

Following = tuple[Callable[[Any], None], Any]
"""What is called, with what."""
Cost = tuple[float, float, StepFault | None, StepFault, Any]
"""The cost of a call: seconds from its beginning to its end, in two summands; what faults do to the
way of each of its inputs (None: they are there at once, over no link), and of each of its values;
its answer, if nothing is computed."""


class Actor(Protocol):
    """A virtual actor: the times of its methods and, where a run trains, what they compute."""

    site: str
    """Its place in the network: nothing travels between two actors of one site."""

    def cost(self, message: Message, inputs: Sequence[Any]) -> Cost:
        """Return the cost of a call."""

    def compute(
        self, message: Message, inputs: list[Any], answer: Any
    ) -> tuple[Sequence[Any], Any]:
        """Return the values of a call and its answer, given the answer of its cost."""

    def state(self) -> dict[str, Any]:
        """Return what the computing of later calls depends on: tensors, and what is JSON-native."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Take what `state` returned, on an actor for whose calls so far only `cost` was called."""


class Process:
    """The process of an actor. What each call needs is at hand here, whatever the actor is."""

    def __init__(self, actor: Actor, ways: Mapping[str, AnyWay] | None) -> None:
        """
        Args:
            actor: that it has.
            ways: see `ways`.
        """
        self.actor, self.cost, self.site = actor, actor.cost, actor.site
        self.ways = ways
        """Source -> the way from there to its site, in the phase in force; None: there is none."""
        self.free_at = 0.0
        """The time at which it has done all calls that are not pending, in seconds since the run
        began."""
        self.pending: deque[PendingCall] = deque()
        """Its calls whose end is not known yet, in their order."""


class VirtualCall(Struct, eq=False, weakref=True):
    """A call, which also stands for the first of its values."""

    at: float
    """The time at which it is done, in seconds since the run began; infinity: never, or not
    known."""
    site: str = ""
    fault: StepFault = NO_FAULT
    """What is done to the way of its values."""
    answer: Any = None
    values: Sequence[Any] | None = None
    """The computed values; None: they are not computed yet, or nothing is."""
    moved: VirtualCall | None = None
    """The call that it stands for since it was repeated."""
    arrives_at: float | None = None
    """Of a push that the coordinator is to take in: when it arrives. `at` is infinity until it is
    taken in."""
    followers: list[Following] | None = None
    """What to do once it is known when it is done; None: it is known."""
    watchers: tuple[Any, ...] = ()
    """What is called back when it is done, each with its argument behind it, while it is not known
    when that is."""

    def value(self, index: int) -> VirtualCall | OtherValue:
        return self if index == 0 else OtherValue(self, index)

    @property
    def computed(self) -> Any:
        """The value that it stands for, once it is computed."""
        assert self.values is not None, "nothing is computed"
        return self.values[0]


def _is_computed(call: VirtualCall) -> bool:
    """Say whether a call has left values, or has failed; files of states, which only leave the
    run, are none.
    """
    if call.values is None:
        return isinstance(call.answer, Failure)
    return not any(isinstance(each, bytes) for each in call.values)


def _state_of(call: VirtualCall) -> dict[str, Any]:
    if isinstance(call.answer, Failure):
        return {"failure": astuple(call.answer)}
    assert call.values is not None, "nothing is computed"
    answer = call.answer
    if isinstance(answer, StepReport):
        return {"values": list(call.values), "step": [answer.loss, answer.busy_s]}
    return {"values": list(call.values), "answer": answer}


def _load_state(call: VirtualCall, state: Mapping[str, Any]) -> None:
    if "failure" in state:
        call.answer = Failure(*state["failure"])
    else:
        call.values = state["values"]
        call.answer = StepReport(*state["step"]) if "step" in state else state["answer"]


def follow(value: VirtualCall | OtherValue, then: Callable[[Any], None], argument: Any) -> None:
    """Call `then(argument)` once it is known when a value is there."""
    if value.followers is None:
        then(argument)
    else:
        value.followers.append((then, argument))


def tell(value: VirtualCall | OtherValue) -> None:
    """Call what follows a value: it is known when that is there."""
    followers, value.followers = value.followers or (), None
    for then, argument in followers:
        then(argument)


def _take_over(calls: tuple[VirtualCall, VirtualCall]) -> None:
    """Give a call that was lost what the one that stands for it has computed."""
    lost, call = calls
    if lost.moved is call:
        lost.answer, lost.values = call.answer, call.values


class OtherValue:
    """Another value of a call than the first."""

    def __init__(self, call: VirtualCall, index: int) -> None:
        self._call, self._index = call, index
        self.at, self.site, self.fault = call.at, call.site, call.fault
        self.followers: list[Following] | None = None
        """See `VirtualCall.followers`."""
        if call.followers is not None:
            self.followers = []
            call.followers.append((self._tell, call))

    def _tell(self, call: VirtualCall) -> None:
        self.at = call.at
        tell(self)

    @property
    def answer(self) -> Any:
        """The answer of its call."""
        return self._call.answer

    @property
    def computed(self) -> Any:
        assert self._call.values is not None, "nothing is computed"
        return self._call.values[self._index]


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of an actor's process: a call that is not done by then fails, or is never done."""

    at: float
    """Seconds since the run began."""
    freezes: bool = False
    """Whether the process stops without a sign. Otherwise it dies, which is noticed."""


def _death(actor: str) -> Failure:
    return Failure("died", "its actor died", actor)


class PendingCall(Struct, eq=False):
    """A call that may have to wait for its inputs to come."""

    call: VirtualCall
    actor: str
    process: Process
    message: Message
    inputs: Sequence[Any]
    begin: float
    """The time before which it cannot begin, as far as is known."""
    first_s: float
    second_s: float
    """The seconds from its beginning to its end, in two summands."""
    end: ProcessEnd | None
    """The end of its process."""
    missing: int
    """The number of inputs of which it is not known when they come."""


Coming = tuple[VirtualCall, AnyWay | None, StepFault]
"""An input that has to come: its way, if it has one, and what faults do to that."""


class VirtualBackend:
    """The world of one run in virtual time."""

    def __init__(
        self,
        network_of: Callable[[str], PhaseNetwork],
        make: Callable[[str], Actor],
        *,
        phase: str = "",
        computes: bool,
        ends: Mapping[str, Sequence[ProcessEnd]] | None = None,
        began_at: float = 0.0,
        start_s: Callable[[str], float] = lambda worker: 0.0,
    ) -> None:
        """
        Args:
            network_of: returns the network between the sites in a phase of the paradigm, when
                that begins.
            make: builds a fresh actor for an id, also at a restart.
            phase: the phase that the run begins in.
            computes: whether calls compute, or only take time.
            ends: actor -> the ends of its successive processes; a process whose end is not given
                does not end.
            began_at: the time, in seconds since the run began, at which it goes on.
            start_s: returns the seconds that a worker takes to be ready when it is started anew.
        """
        self.computes = computes
        self._processes: dict[str, Process] = {}
        self._network_of = network_of
        self.enter_phase(phase)
        self._coordinator_free_at = 0.0
        """The time at which the coordinator has taken in all pushes so far."""
        self._make = make
        self._start_s = start_s
        self._ends = {actor: list(each) for actor, each in (ends or {}).items()}
        """Actor -> the ends of its processes, that of the present process first."""
        self._fails = bool(ends)
        """Whether calls can fail because a process ends."""
        self._queue: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._scheduled = 0
        self._called = 0
        self._calls: WeakValueDictionary[int, VirtualCall] = WeakValueDictionary()
        """Number of a call that computes -> the call, while anything refers to it."""
        self._reenacts: Callable[[Message, Any], Any] | None = None
        """See `reenact`; None: calls compute."""
        self.now = began_at
        """See `Backend.now`."""

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        self._scheduled += 1
        heappush(self._queue, (at, self._scheduled, happens, argument))

    def wait(self) -> None:
        """See `Backend.wait`; where nothing is computed, several events at once."""
        queue = self._queue
        assert queue, "the event queue is empty"
        for _ in range(1 if self.computes else min(REPORT_EVERY, len(queue))):
            self.now, _, happens, argument = heappop(queue)
            happens(argument)

    @property
    def processed(self) -> int:
        """The number of events so far, with the one in hand."""
        return self._scheduled - len(self._queue)

    @property
    def is_reenacting(self) -> bool:
        """Whether calls leave no values now: see `reenact`."""
        return self._reenacts is not None

    def reenact(
        self, events: int, answered: Callable[[Message, Any], Any], until: float = inf
    ) -> None:
        """Process the first events of a run again, without computing anything: calls take their
        time, and leave no values.

        Args:
            events: the number of events that are processed then.
            answered: called with a message, and the answer of its cost; returns the answer.
            until: the time of the last of them at the most, in seconds since the run began.
        """
        self._reenacts = answered
        while self.processed < events and self._queue and self._queue[0][0] <= until:
            self.now, _, happens, argument = heappop(self._queue)
            happens(argument)
        self._reenacts = None

    def state(self) -> dict[str, Any]:
        """Return what calls have computed that later calls, or the driver, may still need."""
        return {
            "actors": {name: each.actor.state() for name, each in self._processes.items()},
            "calls": {
                str(number): _state_of(call)
                for number, call in self._calls.items()
                if _is_computed(call)
            },
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take what `state` returned, once the run has been reenacted up to there."""
        for name, saved in state["actors"].items():
            self._processes[name].actor.load_state(saved)
        for number, saved in state["calls"].items():
            if call := self._calls.get(int(number)):
                _load_state(call, saved)

    def is_report_due(self, lines: int) -> bool:
        """See `Backend.is_report_due`: virtual seconds pass unwatched."""
        if lines < REPORT_EVERY or self.computes:
            return lines >= REPORT_EVERY
        return lines >= MOST_LINES or 100 * lines >= self._scheduled

    def call(self, actor: str, message: Message, inputs: Sequence[Any] = ()) -> VirtualCall:
        process = self._processes.get(actor) or self._start(actor)
        cost, ways = process.cost, process.ways
        begin = now = self.now
        if process.free_at > begin:
            begin = process.free_at
        first_s, second_s, fault, value_fault, answer = cost(message, inputs)
        if fault is None:
            ways, fault = None, NO_FAULT
        coming: list[Coming] = []
        for value in inputs:
            at, way = value.at, ways.get(value.site) if ways else None
            if way is not None:
                both = fault if value.fault is NO_FAULT else fault.beside(value.fault)
                if at < inf and not isinstance(way, FairWay):
                    at = way.arrival(at if at > now else now, both)
                else:
                    coming.append((value, way, both))
                    continue
            elif value.followers is not None:
                coming.append((value, None, fault))
                continue
            if at > begin:
                begin = at
        site, is_known = process.site, not (coming or process.pending)
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
            missing=len(coming),
        )
        if is_known:
            self._settle(pending)
        else:
            self._await_inputs(pending, coming)
        return call

    def _end_of(self, actor: str) -> ProcessEnd | None:
        """Return the end of the present process of an actor."""
        ends = self._ends.get(actor)
        return ends[0] if ends else None

    def _await_inputs(self, pending: PendingCall, coming: Sequence[Coming]) -> None:
        """Let a call begin once its inputs have come, and those before it are done."""
        call, end = pending.call, pending.end
        call.followers = []
        pending.process.pending.append(pending)
        for each in coming:
            follow(each[0], self._send, (pending, each))
        if call.followers is not None and end is not None and not end.freezes:
            self.schedule(max(end.at, self.now), self._die, pending)

    def _send(self, pending_and_input: tuple[PendingCall, Coming]) -> None:
        """Let an input set out for a pending call, now that it is known when it is there."""
        pending, (value, way, fault) = pending_and_input
        begin = max(value.at, self.now)
        if way is None or begin == inf:  # what never comes holds up nothing
            self._come(pending, begin)
        elif isinstance(way, FairWay):
            way.send(self, begin, fault, self._come, pending)
        else:
            self._come(pending, way.arrival(begin, fault))

    def _come(self, pending: PendingCall, at: float) -> None:
        """Take in when an input of a pending call comes."""
        pending.begin = max(pending.begin, at)
        pending.missing -= 1
        process, queue = pending.process, pending.process.pending
        while queue and not queue[0].missing:
            following = queue.popleft()
            following.begin = max(following.begin, process.free_at)
            self._settle(following)

    def _die(self, pending: PendingCall) -> None:
        """Let a call fail that still waits for inputs as its process ends."""
        call, process = pending.call, pending.process
        if pending in process.pending:
            process.pending.remove(pending)
            call.at = process.free_at = self.now
            call.answer = _death(pending.actor)
            self._known(call)

    def _settle(self, pending: PendingCall) -> None:
        """Take in when a call begins, and so when it is done."""
        call, process = pending.call, pending.process
        call.at = process.free_at = pending.begin + pending.first_s + pending.second_s
        if self._fails:
            self._fail_or_freeze(pending)
        if self.computes and call.at < inf:
            self._called += 1
            self._calls[self._called] = call
            self.schedule(call.at, self._compute, pending)
        self._known(call)

    def _known(self, call: VirtualCall) -> None:
        """Call what follows a call, now that it is known when it is done."""
        watchers, call.watchers = call.watchers, ()
        if call.followers:
            tell(call)
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
            self.schedule(call.arrives_at, self._take_in, (call, then, argument))

    def late_s(self, value: VirtualCall) -> float:
        late_s = value.at - self.now
        return late_s if 0.0 < late_s < inf else 0.0  # inf: of a server that was lost

    def deliver(self, value: VirtualCall, actor: str) -> tuple[VirtualCall, ...]:
        """See `Backend.deliver`; the coordinator takes values in in the order of their arrival, so
        only then is it known when that is done.
        """
        process = self._processes.get(actor) or self._start(actor)
        site, ways = process.site, process.ways
        way = ways.get(value.site) if ways else None
        value.site = site
        if isinstance(way, FairWay):
            delivery = VirtualCall(inf, site, followers=[])
            value.at, value.followers = inf, []
            way.send(self, self.now, value.fault, self._delivered, (value, delivery))
            return (delivery,)
        value.at = at = self.now if way is None else way.arrival(self.now, value.fault)
        if self._push_s:
            return (VirtualCall(inf, site, arrives_at=at),)
        return (VirtualCall(at, site),) if at > self.now else ()

    def _delivered(self, sent: tuple[VirtualCall, VirtualCall], at: float) -> None:
        """Take in when a value arrives that has been sent to a server."""
        value, delivery = sent
        value.at = at
        if self._push_s:
            delivery.arrives_at = at
        else:
            delivery.at = at
        self._known(value)
        self._known(delivery)

    def _take_in(self, waiting: tuple[VirtualCall, Callable[[Any], None], Any]) -> None:
        """Let the coordinator take in a push that has arrived, after those before it."""
        delivery, then, argument = waiting
        self._coordinator_free_at = max(self.now, self._coordinator_free_at) + self._push_s
        delivery.at = self._coordinator_free_at
        self.watch(delivery, then, argument)

    def enter_phase(self, phase: str) -> None:
        """See `Backend.enter_phase`: what is on its way stays as it is."""
        network = self._network_of(phase)
        self._paths, self._push_s = network.paths, network.push_s
        self.delivers = network.changes or self._push_s > 0 or any(self._paths.values())
        """See `Backend.delivers`."""
        for process in self._processes.values():
            process.ways = self._paths.get(process.site)

    def is_done(self, call: VirtualCall) -> bool:
        return call.at <= self.now

    def failure(self, call: VirtualCall, patience_s: float) -> Failure | None:
        if call.at > self.now + patience_s:
            raise TimeoutError(f"it is done at {call.at:g} s")
        return call.answer if isinstance(call.answer, Failure) else None

    def room(self, worker: str) -> Room:
        """See `Backend.room`: there is always room."""
        return "free"

    def watch_nodes(
        self, drained: Callable[[str], None], lost: Callable[[str, Sequence[str]], None]
    ) -> None:
        """See `Backend.watch_nodes`: no node is ever taken away."""

    def spawn(self, worker: str) -> VirtualCall:
        return self._ready(self._start_s(worker))

    def end_at(self, worker: str, at: float) -> None:
        """See `Backend.end_at`; to be told before the first call of the worker."""
        self._fails = True
        self._ends[worker] = [ProcessEnd(at)]

    def kill(self, actor: str) -> None:
        """See `Backend.kill`; the calls fail that waited for a value of a frozen actor."""
        self._end_process(actor)
        self._free_waiting()

    def restart(self, actor: str, *base: Any, freezes: bool = False) -> VirtualCall:
        """See `Backend.restart`; it is ready at once."""
        self._end_process(actor)
        self._free_waiting()
        return self.call(actor, RestoreCall(), base) if base else self._ready(0.0)

    def _free_waiting(self) -> None:
        """Let no process wait any longer for what a frozen one owed it."""
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
            follow(call, self._stand_for, (lost, call))
        return call

    def _stand_for(self, calls: tuple[VirtualCall, VirtualCall]) -> None:
        """Take in when a lost call is done by the one that is made in its place."""
        lost, call = calls
        lost.at, lost.answer = call.at, call.answer
        if call.at < inf:
            self.schedule(call.at, _take_over, (lost, call))
        self._known(lost)

    def _end_process(self, actor: str) -> None:
        """Forget the present process of an actor, and its end."""
        if self._processes.pop(actor, None) is None:
            return
        if ends := self._ends.get(actor):
            del ends[0]
            if not ends:
                del self._ends[actor]

    def _ready(self, after_s: float) -> VirtualCall:
        return VirtualCall(self.now + after_s)

    def _start(self, name: str) -> Process:
        actor = self._make(name)
        process = Process(actor, self._paths.get(actor.site))
        self._processes[name] = process
        return process

    def _fail_or_freeze(self, pending: PendingCall) -> None:
        """Let a call fail if an input did, or if its process ends before it is done."""
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
