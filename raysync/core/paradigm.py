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
    """What an experiment file may name under `paradigm`: a `Paradigm`, or a kind of run of
    its own.
    """

    name: ClassVar[str]

    @property
    def phase(self) -> str:
        """The phase in force at the beginning."""

    def infeasible_reason(self, workers: int) -> str:
        """Why a run cannot start under it with so many workers: value and what is allowed; empty if
        it can.
        """

    def phases(self) -> tuple[str, ...]:
        """The values of `Apply.phase` that it may give, for `update.phases`."""

    def parameters(self) -> dict[str, Any]:
        """What the constructor takes."""


@dataclass
class Paradigm(ABC):
    """Who may go on, and whose gradients are applied.

    A paradigm is a dataclass: its parameters are the fields of its constructor, its state the
    fields with `init=False`. Both are JSON-native with string keys, so that a machine can be
    written down at any moment and go on elsewhere. It reads the roster and returns decisions; it
    never changes the roster, reads no clock and draws no randomness.

    When a method is called the roster already shows the event: a newcomer or a pusher is held, its
    push is buffered, a leaver is gone. Decisions take effect in their order, after the method has
    returned.
    """

    name: ClassVar[str]
    """What tables call it."""

    @abstractmethod
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        """A push has arrived: `push` is (worker, clock), and the worker is held."""

    @property
    def phase(self) -> str:
        """The paradigm in force: this one, or what a switching one is at. It is what a `Switch`
        names as `to`.
        """
        return self.name

    def on_join(self, roster: Roster, worker: str) -> list[Decision]:
        """A worker has joined, held at the slowest member's clock; or a restored one has ended its
        old step.

        After a switch to this paradigm the held are newcomers to it; who is computing then pushes
        without having joined.
        """
        return [Release(worker)]

    @abstractmethod
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        """A worker has left, or this rule suspended it; its arrived pushes are still buffered.

        Whoever waited for it must not wait for ever.
        """

    def on_timer(self, roster: Roster, key: str) -> list[Decision]:
        """A timer that this paradigm set has fired."""
        raise IllegalDecision(
            f"{type(self).__name__} sets the timer {key!r}, but defines no on_timer."
        )

    def on_switch(self, roster: Roster) -> list[Decision]:
        """A Switch of this paradigm has taken effect: all leads are 0. Says who of the held may go
        on.
        """
        raise IllegalDecision(f"{type(self).__name__} decides a Switch, but defines no on_switch.")

    @abstractmethod
    def explain(self, roster: Roster, worker: str) -> str:
        """Why this worker is held, or suspended: one line for a person, naming at most three
        others.
        """

    def infeasible_reason(self, workers: int) -> str:
        """Why a run cannot start under this paradigm with so many workers: value and what is
        allowed; empty if it can.
        """
        return ""

    def phases(self) -> tuple[str, ...]:
        """The values of `Apply.phase` that it may give, for `update.phases`."""
        return ("",)

    def demands(self) -> Iterator[Demand]:
        """Yield what it asks of a topology, each with the setting that does: only some can carry it
        out.
        """
        yield from ()

    def parameters(self) -> dict[str, Any]:
        """What the constructor takes."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}

    def state(self) -> dict[str, Any]:
        """What has changed since construction; JSON-native."""
        return {field.name: getattr(self, field.name) for field in fields(self) if not field.init}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""
        for name, value in state.items():
            setattr(self, name, value)


def reference_to(cls: type) -> str:
    """Return `package.module:Name`, the way experiment files and journals name a class."""
    return f"{cls.__module__}:{cls.__qualname__}"
