"""The driver's view of the world: a clock, actors, calls, and the values of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from raysync.engine.messages import Message

# There are two backends. On Ray (`cluster.ray_backend`) an actor is a process, a value is a
# reference into the object store, and seconds pass. On the virtual clock
# (`virtual.virtual_backend`) an actor is an object of this process, a value has a time and a place,
# and seconds are numbers. The driver issues the same calls on both, so the simulation is the run.
#
# A call is issued as soon as it is decided, even if its inputs are not computed yet. An actor
# carries out its calls in order. Reports are callbacks: in virtual time a list of completions would
# cost an object and a look-up per push.

# A value stays where its call computed it until another call needs it. A `Call` is the first of
# its values; `Call.value` returns the others.
Value = Any

# Whether a worker can start. none: its node is gone or about to go, and no other has a place so
# far; busy: that is unknown yet, or its node must first start others.
Availability = Literal["free", "busy", "none"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A call's answer if it failed, perhaps in a call whose values it needs."""

    # an actor died, a value was lost with its node, or an actor's own code raised an error
    kind: Literal["died", "lost", "raised", "other"]
    reason: str  # for the user, in a few lines
    actor: str = ""  # that died or raised; "": unknown
    with_node: bool = False  # the actor's node is known to be gone, too


class Call(Protocol):
    """One call of an actor's method, under way or done; it is hashed by identity."""

    def value(self, index: int) -> Value:
        """Return one of its values, which may be passed on before it is computed."""

    @property
    def answer(self) -> Any:
        """The method's answer to the driver, or a `Failure`; only of a call that is done."""


class Transit(Protocol):
    """Values that travel between actors."""

    @property
    def delivers(self) -> bool:
        """Whether values take time between actors."""

    def late_s(self, value: Value) -> float:
        """Return the seconds until a value is computed, or 0 where that cannot be foreseen."""

    def deliver(self, value: Value, actor: str) -> tuple[Call, ...]:
        """Start to move a completed call's first value to an actor, without blocking its calls.

        Only where it `delivers`.

        Returns:
            Calls to wait for; none if nothing is left to be moved.
        """

    def enter_phase(self, phase: str) -> None:
        """Note a switch to that phase; a described network may change with it."""


class ActorProcesses(Protocol):
    """The processes of actors, which begin and end."""

    def availability(self, worker: str) -> Availability: ...

    def watch_nodes(
        self, drained: Callable[[str], None], lost: Callable[[str, Sequence[str]], None]
    ) -> None:
        """Report the fate of the nodes of workers and servers.

        Args:
            drained: called once with an actor, joined or not, whose node is announced to go.
            lost: called with a lost node's address, as users know it, and its actors.
        """

    def schedule_deadline(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        """Schedule what follows if an actor is silent; nothing where none can fall silent.

        `argument` refers to a call weakly: a deadline must not keep a call's values in memory.
        """

    def spawn(self, worker: str) -> Call:
        """Start the actor of a returning worker; the call is done when it is ready."""

    def end_at(self, worker: str, at: float) -> None:
        """Let a worker's process die at that time, unless it was killed before.

        Nobody is notified: its calls fail as with any dead actor.
        """

    def kill(self, actor: str) -> None:
        """End an actor at once: even a frozen or unreachable one must free its device."""

    def restart(self, actor: str, *base: Value, freezes: bool = False) -> Call:
        """Restart the evaluator, or a lost server; the call is done when it is ready.

        The new process carries out all later calls.

        Args:
            base: a server's snapshot to begin with; none: its state at the run's start or
                resumption.
            freezes: the old process may be frozen rather than gone, and is ended.

        Raises:
            RunLost: no node has a place for the server.
        """

    def can_lose(self, server: str) -> bool:
        """Return whether a server's process may be lost, and can be restarted."""


class Backend(Protocol):
    """The world of one run."""

    @property
    def transit(self) -> Transit: ...

    @property
    def processes(self) -> ActorProcesses: ...

    @property
    def computes(self) -> bool:
        """Whether calls compute; where they only take time, servers need no details of updates."""

    @property
    def now(self) -> float:
        """The seconds since the run began."""

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        """Call `happens(argument)` at that time."""

    def wait(self) -> None:
        """Wait for the next event, and call back whatever is due."""

    def is_report_due(self, lines: int) -> bool:
        """Return whether a report of so many lines is due."""

    def call(self, actor: str, message: Message, inputs: Sequence[Value] = ()) -> Call:
        """Call the actor `server`, `evaluator` or a worker; inputs are values of other calls."""

    def repeat(
        self, lost: Any, server: str, message: Message, inputs: Sequence[Value] = ()
    ) -> Call:
        """Repeat a call on a restarted server.

        `lost` is the old call: it gets the new values, for later calls, and must be watched again;
        a call that was issued with the old ones has failed. None: nobody needs them.
        """

    def watch(self, call: Any, then: Callable[[Any], None], argument: Any) -> None:
        """Call `then(argument)` once the call is done or has failed."""

    def is_done(self, call: Any) -> bool:
        """Return whether the call is done or has failed."""

    def failure(self, call: Any, patience_s: float) -> Failure | None:
        """Return the failure of a call, or None if it is done.

        Raises:
            TimeoutError: the call is still under way after `patience_s` seconds.
        """
