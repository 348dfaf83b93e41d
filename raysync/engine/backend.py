"""The driver's view of the world: a clock, actors, calls, and the values that calls leave behind.

There are two backends. On Ray (`cluster.ray_backend`) an actor is a process, a value is a reference
into the object store, and seconds pass. On the virtual clock (`virtual.virtual_backend`)
an actor is an object of this process, a value has a time and a place, and seconds are numbers. The
driver and the topologies issue the same calls on both, so what is simulated is what runs.

A call is issued as soon as it is decided: its inputs may be values that are not computed yet. An
actor carries out its calls in their order.

The backend reports by callbacks, not by a list of completions: in virtual time that list would cost
an object, and a look-up, for each push.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from raysync.engine.messages import Message

Value = Any
"""A value that a call leaves where it was computed, until another call needs it. A `Call` stands
for the first of its values; its method `value` returns the others."""

Room = Literal["free", "busy", "none"]
"""Whether a worker can be started in its place. `none`: its node is gone, or is about to be taken
away, and it has no place on another so far; `busy`: that is not known yet, or its node must first
start others."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a call, in place of its answer."""

    kind: Literal["died", "lost", "raised", "other"]
    """`died`: an actor died; `lost`: a value was lost with the node that held it; `raised`: an
    actor's own code raised an error. It may have happened in a call whose values this call
    needs."""
    reason: str
    """The part of the error that the user needs, in a few lines."""
    actor: str = ""
    """The id of the actor that died, or whose code raised the error; "" if it is unknown."""
    with_node: bool = False
    """Whether the actor's node is known to be gone, too."""


class Call(Protocol):
    """One call of an actor's method, under way or done."""

    def value(self, index: int) -> Value:
        """Return one of the values that it leaves behind, which may be passed on before it is
        computed.
        """

    @property
    def answer(self) -> Any:
        """The method's answer to the driver, or a `Failure`; to be read only once the call is
        done.
        """


class Backend(Protocol):
    """The world of one run."""

    @property
    def computes(self) -> bool:
        """Whether calls compute; where they only take time, servers need no details of an
        update.
        """

    @property
    def now(self) -> float:
        """The seconds since the run began."""

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        """Call `happens(argument)` at that time, in seconds since the run began."""

    def wait(self) -> None:
        """Wait for the next event, and call back whatever is due."""

    def is_report_due(self, lines: int) -> bool:
        """Return whether a report is due now, given the number of lines for it."""

    def call(self, actor: str, message: Message, inputs: Sequence[Value] = ()) -> Call:
        """Call an actor.

        Args:
            actor: the id `server` or `evaluator`, or that of a worker.
            message: what it is called for.
            inputs: values that other calls leave behind.
        """

    def watch(self, call: Any, then: Callable[[Any], None], argument: Any) -> None:
        """Call `then(argument)` once the call is done or has failed."""

    @property
    def delivers(self) -> bool:
        """Whether any value takes time on its way from one actor to another."""

    def late_s(self, value: Value) -> float:
        """Return the seconds until a value that is asked for now will have been made; 0 where that
        cannot be foreseen.
        """

    def deliver(self, value: Value, actor: str) -> tuple[Call, ...]:
        """Bring a value to the site of an actor that will need it, as soon as it is computed, and
        without holding up the actor's calls; only called where the backend `delivers`.

        Args:
            value: the first value of a call that is done.
            actor: the one that needs it.

        Returns:
            Calls to wait for until the value is there; none if nothing is left to be brought.
        """

    def enter_phase(self, phase: str) -> None:
        """Note that the paradigm has switched to that phase; only a described network can change
        with it, not a real one.
        """

    def is_done(self, call: Any) -> bool:
        """Return whether the call is done or has failed."""

    def failure(self, call: Any, patience_s: float) -> Failure | None:
        """Return the failure of a call, or None if it is done.

        Raises:
            TimeoutError: the call is still under way after `patience_s` seconds.
        """

    def room(self, worker: str) -> Room:
        """Return whether a worker that comes back can be started now."""

    def watch_nodes(
        self, drained: Callable[[str], None], lost: Callable[[str, Sequence[str]], None]
    ) -> None:
        """Tell what becomes of the nodes of workers and servers.

        Args:
            drained: called with an actor, once, when it is announced that its node will be taken
                away; also if the worker has not joined yet.
            lost: called with a node that is gone, by the address that users know it by, and the
                actors that were on it.
        """

    def spawn(self, worker: str) -> Call:
        """Start the actor of a worker that comes back; the call is done when it is ready."""

    def end_at(self, worker: str, at: float) -> None:
        """Let the process of a worker die at that time, in seconds since the run began, unless the
        worker was killed by then. Nobody is told: its calls fail as those of any dead actor do.
        """

    def kill(self, actor: str) -> None:
        """End an actor at once: if it is frozen or unreachable, it must not keep its device."""

    def restart(self, actor: str, *base: Value, freezes: bool = False) -> Call:
        """Start the evaluator anew, or a server in the place of one that is lost; the call is done
        when it is ready. What it is sent from now on, the new process carries out.

        Args:
            actor: its id.
            base: the snapshot of a server that it begins with; without, it is as it was when the
                run began, or was resumed.
            freezes: the process may still be there; it is ended, then.

        Raises:
            RunLost: there is no place for a server any more.
        """

    def can_lose(self, server: str) -> bool:
        """Return whether the process of a server may be lost, and can be started anew."""

    def repeat(
        self, lost: Any, server: str, message: Message, inputs: Sequence[Value] = ()
    ) -> Call:
        """Call a server that was started anew, as the one before it was called.

        Args:
            lost: a call without values, which stands for the new ones from now on; whoever
                watches it does so anew. None: nobody needs the values.
            server: its id.
            message: see `call`.
            inputs: see `call`.
        """
