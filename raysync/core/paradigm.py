"""The contract of a synchronisation paradigm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

from raysync.core.capability import Demand
from raysync.core.decisions import Decision, Push, Release
from raysync.core.roster import Roster
from raysync.errors import IllegalDecision


class AnyParadigm(Protocol):
    """The interface of what an experiment file names under `paradigm`: a `Paradigm`, or a kind of
    run of its own.
    """

    name: ClassVar[str]
    why_workers_stay: ClassVar[str]
    """Why a run under it cannot go on with other workers than it had, as a clause; "" if it can."""

    @property
    def phase(self) -> str:
        """The phase in force at the beginning."""

    def infeasible_reason(self, workers: int) -> str:
        """Return why a run cannot start under it with so many workers: the value and what is
        allowed; "" if it can.
        """

    def phases(self) -> tuple[str, ...]:
        """Return the values that `Apply.phase` may have, which `update.phases` may name."""

    def pushes_per_update(self, workers: int, phase: str = "") -> int | None:
        """Return how many pushes an update is made of; None: it varies."""

    def parameters(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""


@dataclass
class Paradigm(ABC):
    """The decisions which workers may continue, and which gradients are applied.

    A paradigm is a dataclass: its parameters are the fields of its constructor, its state the
    fields with `init=False`. Both are JSON-native with string keys, so that the state of a machine
    can be written down at any moment and restored elsewhere. It reads the roster and returns
    decisions; it never changes the roster, reads no clock and draws no randomness.

    When a method is called, the roster already shows the event: a worker that joined or pushed is
    held, its push is buffered, and a worker that left is no member. Decisions take effect in their
    order, after the method has returned.
    """

    name: ClassVar[str]
    """The name that tables show."""
    why_workers_stay: ClassVar[str] = ""

    @abstractmethod
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        """Handle the arrival of a push (worker, clock); the worker is held."""

    @property
    def phase(self) -> str:
        """The phase in force, which a `Switch` names as `to`; of a paradigm that does not switch,
        its own name.
        """
        return self.name

    def on_join(self, roster: Roster, worker: str) -> list[Decision]:
        """Handle a worker that has joined and is held at the slowest member's clock, or one that
        was restored and has ended the step that it was at.

        After a switch to this paradigm it is called for the held workers; workers that are
        computing push later without a call of this method."""
        return [Release(worker)]

    @abstractmethod
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        """Handle a worker that has left, or that this paradigm suspended; its buffered pushes are
        still there.

        Workers that waited for it must not wait for ever.
        """

    def on_timer(self, roster: Roster, key: str) -> list[Decision]:
        """Handle a timer that this paradigm set."""
        raise IllegalDecision(
            f"{type(self).__name__} sets the timer {key!r}, but defines no on_timer."
        )

    def on_switch(self, roster: Roster) -> list[Decision]:
        """Decide which of the held workers may continue after a Switch of this paradigm, which has
        set all leads to 0.
        """
        raise IllegalDecision(f"{type(self).__name__} returns a Switch, but defines no on_switch.")

    @abstractmethod
    def explain(self, roster: Roster, worker: str) -> str:
        """Return why this worker is held or suspended: one line for a person, naming at most three
        other workers.
        """

    def infeasible_reason(self, workers: int) -> str:
        """Return why a run cannot start under this paradigm with so many workers: the value and
        what is allowed; "" if it can.
        """
        return ""

    def phases(self) -> tuple[str, ...]:
        """Return the values that `Apply.phase` may have, which `update.phases` may name."""
        return ("",)

    def pushes_per_update(self, workers: int, phase: str = "") -> int | None:
        """Return how many pushes make an update while so many workers take part, in a phase that
        `phases` names; None: not always as many.
        """
        return None

    @property
    def collective(self) -> str:
        """The collective operation by which the workers of an update exchange its gradients among
        themselves, `ring`, `tree`, or `all-reduce` for the faster of the two; "" if these go to a
        server.
        """
        return ""

    def demands(self) -> Iterator[Demand]:
        """Yield its demands on a topology, each with the setting that makes it: only some
        topologies can meet them.
        """
        yield from ()

    def named_batch_sizes(self) -> Mapping[str, int]:
        """Return the batch sizes that its parameters name: the path of the parameter -> samples of
        one worker's iteration.
        """
        return {}

    def parameters(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}

    def state(self) -> dict[str, Any]:
        """Return what has changed since construction; JSON-native."""
        return {field.name: getattr(self, field.name) for field in fields(self) if not field.init}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        for name, value in state.items():
            setattr(self, name, value)


def reference_to(cls: type) -> str:
    """Return `package.module:Name`, the way experiment files and journals name a class."""
    return f"{cls.__module__}:{cls.__qualname__}"
