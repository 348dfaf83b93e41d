"""What the driver asks of the world: a clock, actors, calls, and the values that calls leave
behind.

There are two backends. On Ray (`raysync.cluster.backend`) an actor is a process, a value is a
reference into the object store, and seconds pass. On the virtual clock (`raysync.virtual.backend`)
an actor is an object of this process, a value knows when and where it is there, and seconds are
numbers. The driver and the topologies issue the same calls on both, so what is simulated is what
runs.

A call is passed on as soon as it is decided: its inputs may be values that are still to be
computed. An actor works its calls off in their order.

What is done is told by calling back, not by a list of completions to be sorted out: in virtual time
that would be an object, and a look-up, for each push.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Value = Any
"""What a call leaves where it was made, until another call needs it. A `Call` stands for the first
of its values; the others are what its `value` returns."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What came of a call in place of an answer."""

    kind: Literal["died", "lost", "raised", "other"]
    """An actor died; a value was lost with the node that held it; an actor's own code raised an
    error. That may have befallen a call whose values this one was waiting for."""
    reason: str
    """The part of the error that the user needs, in a few lines."""
    actor: str = ""
    """The id of the actor that died, or whose code raised the error; empty if it is unknown."""


class Call(Protocol):
    """One call of an actor's method, under way or done."""

    def value(self, index: int) -> Value:
        """Return one of the values that it leaves behind, which may be passed on before it is
        computed.
        """

    @property
    def answer(self) -> Any:
        """What the method tells the driver, or a `Failure`; asked for only once it is done."""


class Backend(Protocol):
    """The world of one run."""

    @property
    def computes(self) -> bool:
        """Whether calls compute; where they only take time, nothing need be told to servers."""

    @property
    def now(self) -> float:
        """The seconds since the run began."""

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        """Call `happens(argument)` at that time, in seconds since the run began."""

    def wait(self) -> None:
        """Wait for the next thing to happen, and call back whatever is due."""

    def is_report_due(self, lines: int) -> bool:
        """Say whether whoever watches the run should hear of it now, given the lines for them."""

    def call(self, actor: str, method: str, fields: list[Any], *inputs: Value) -> Call:
        """Call a method of an actor.

        Args:
            actor: its id: `server`, `evaluator`, or that of a worker.
            method: its name.
            fields: strings and numbers, and lists of them.
            inputs: values that other calls leave behind.
        """

    def watch(self, call: Any, then: Callable[[Any], None], argument: Any) -> None:
        """Call `then(argument)` once the call is done or has failed."""

    @property
    def delivers(self) -> bool:
        """Whether values are brought to where they are needed before a call needs them."""

    def deliver(self, value: Value, actor: str) -> tuple[Call, ...]:
        """Bring a value to where an actor will need it; only asked for where the backend
        `delivers`.

        Returns:
            Calls to wait for until it is there; none if nothing is left to be brought. The first
            brings the value here; the others are the actor's own, which takes its parts.
        """

    def is_done(self, call: Any) -> bool:
        """Say whether the call is done or has failed."""

    def failure(self, call: Any, patience_s: float) -> Failure | None:
        """Return why a call failed, or None if it is done.

        Raises:
            TimeoutError: the call is still under way after so many seconds.
        """

    def spawn(self, worker: str) -> Call:
        """Start the actor of a worker that comes back; the call is done when it is ready."""

    def kill(self, actor: str) -> None:
        """End an actor at once; frozen or unreachable, it must not keep its device."""

    def restart(self, actor: str) -> Call:
        """Start an actor anew that has died; the call is done when it is ready."""
