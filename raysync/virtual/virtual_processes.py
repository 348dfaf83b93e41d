"""The processes of the virtual clock: what an actor is, and how its process ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from raysync.engine.backend import Availability, Failure
from raysync.engine.messages import LoadServerStateCall, Message
from raysync.step_fault import StepFault
from raysync.virtual.transfers import AnyRoute
from raysync.virtual.virtual_calls import VirtualCall

if TYPE_CHECKING:
    from raysync.virtual.virtual_backend import VirtualBackend

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


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of an actor's process, which fails its unfinished calls, or freezes them for ever."""

    at: float  # seconds since the run began
    freezes: bool = False  # without a sign, rather than a death that is noticed


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


def death_of(actor: str) -> Failure:
    return Failure("died", "its actor died", actor)


class VirtualProcesses:
    """The processes of one run, as `ActorProcesses` of its backend."""

    def __init__(
        self,
        backend: VirtualBackend,
        make: Callable[[str], Actor],  # creates an actor by its id, also at a restart
        # actor -> the ends of its successive processes; others do not end
        ends: Mapping[str, Sequence[ProcessEnd]],
        start_s: Callable[[str], float],  # a worker -> the seconds that its restart takes
    ) -> None:
        self._backend, self._make, self._start_s = backend, make, start_s
        self.of_actor: dict[str, Process] = {}
        # actor -> the ends of its processes, the current one first
        self._ends = {actor: list(each) for actor, each in ends.items()}
        self.fail = bool(ends)  # whether calls can fail because a process ends

    def start(self, name: str) -> Process:
        actor = self._make(name)
        process = Process(actor, self._backend.transit.routes_to(actor.site))
        self.of_actor[name] = process
        return process

    def end_of(self, actor: str) -> ProcessEnd | None:
        ends = self._ends.get(actor)
        return ends[0] if ends else None

    def schedule_deadline(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        if self.fail:  # else nobody is silent, and a slow link is slow
            self._backend.schedule(at, happens, argument)

    def availability(self, worker: str) -> Availability:
        return "free"

    def watch_nodes(
        self, drained: Callable[[str], None], lost: Callable[[str, Sequence[str]], None]
    ) -> None: ...  # no node is ever drained or lost

    def spawn(self, worker: str) -> VirtualCall:
        return self._ready(self._start_s(worker))

    def _ready(self, after_s: float) -> VirtualCall:
        return VirtualCall(self._backend.now + after_s)

    def end_at(self, worker: str, at: float) -> None:
        # called before the first call of the worker
        self.fail = True
        self._ends[worker] = [ProcessEnd(at)]

    def kill(self, actor: str) -> None:
        self._end_process(actor)
        self._free_waiting()

    def restart(self, actor: str, *base: Any, freezes: bool = False) -> VirtualCall:
        # ready at once
        self._end_process(actor)
        self._free_waiting()
        return self._backend.call(actor, LoadServerStateCall(), base) if base else self._ready(0.0)

    def _end_process(self, actor: str) -> None:
        """Forget the current process of an actor, and its end."""
        if self.of_actor.pop(actor, None) is None:
            return
        if ends := self._ends.get(actor):
            del ends[0]
            if not ends:
                del self._ends[actor]

    def _free_waiting(self) -> None:
        """Let the processes that wait for a value of a frozen one take calls again."""
        for process in self.of_actor.values():
            if process.free_at == inf:
                process.free_at = self._backend.now

    def can_lose(self, server: str) -> bool:
        return self._backend.computes and server in self._ends
