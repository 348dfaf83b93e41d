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
    """The object that an experiment's `paradigm` names: a `Paradigm` or its own kind of run."""

    name: ClassVar[str]
    why_workers_stay: ClassVar[str]  # a clause; "" if a run can resume with other workers

    @property
    def phase(self) -> str:
        """The phase at the beginning of a run."""

    def infeasible_reason(self, workers: int) -> str:
        """Return why a run cannot have so many workers, and what is allowed; "" if it can."""

    def phases(self) -> tuple[str, ...]:
        """Return the possible values of `Apply.phase`, which `update.phases` may name."""

    def pushes_per_update(self, workers: int, phase: str = "") -> int | None:
        """Return the number of pushes in an update; None: it varies."""

    def parameters(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""


@dataclass
class Paradigm(ABC):
    """Decides which workers may continue and which gradients are applied.

    A dataclass, JSON-native: its parameters are its constructor's fields, its state the fields with
    `init=False`. It never changes the roster, reads no clock and draws no randomness.

    When a method is called, the roster already shows the event: a worker that joined or pushed is
    held, its push is buffered, and a worker that left is no member. Decisions take effect in order,
    after the method has returned.
    """

    name: ClassVar[str]
    why_workers_stay: ClassVar[str] = ""

    @abstractmethod
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        """Handle the arrival of a push (worker, clock); the worker is held."""

    @property
    def phase(self) -> str:
        """The current phase, a `Switch.to`; the paradigm's name if it does not switch."""
        return self.name

    def on_join(self, roster: Roster, worker: str) -> list[Decision]:
        """Handle a held newcomer, or a restored worker whose old step has ended.

        A switch to this paradigm calls it for held workers; computing ones push later instead.
        """
        return [Release(worker)]

    @abstractmethod
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        """Handle a worker that left or was suspended; workers must not wait for it for ever.

        Its buffered pushes remain.
        """

    def on_timer(self, roster: Roster, key: str) -> list[Decision]:
        """Handle a timer that this paradigm set."""
        raise IllegalDecision(
            f"{type(self).__name__} sets the timer {key!r}, but defines no on_timer."
        )

    def on_switch(self, roster: Roster) -> list[Decision]:
        """Decide which held workers continue after this paradigm's Switch; all leads are 0."""
        raise IllegalDecision(f"{type(self).__name__} returns a Switch, but defines no on_switch.")

    @abstractmethod
    def explain(self, roster: Roster, worker: str) -> str:
        """Return why a worker is held or suspended: one line that names at most three others."""

    def infeasible_reason(self, workers: int) -> str:
        """Return why a run cannot have so many workers, and what is allowed; "" if it can."""
        return ""

    def phases(self) -> tuple[str, ...]:
        """Return the possible values of `Apply.phase`, which `update.phases` may name."""
        return ("",)

    def pushes_per_update(self, workers: int, phase: str = "") -> int | None:
        """Return the number of pushes in an update among so many workers; None: it varies."""
        return None

    @property
    def collective(self) -> str:
        """`ring`, `tree` or `all-reduce` (the faster) among workers; "": gradients go to a
        server.
        """
        return ""

    def demands(self) -> Iterator[Demand]:
        """Yield the demands on a topology, each with the setting that makes it.

        A rule whose `Apply.weights` are factors demands `Capability.SUM_GRADIENTS`.
        """
        yield from ()

    def named_batch_sizes(self) -> Mapping[str, int]:
        """Return the batch sizes in its parameters: path -> samples per iteration."""
        return {}

    def parameters(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}

    def state(self) -> dict[str, Any]:
        """Return the changes since construction, JSON-native."""
        return {field.name: getattr(self, field.name) for field in fields(self) if not field.init}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`."""
        for name, value in state.items():
            setattr(self, name, value)


def reference_to(cls: type) -> str:
    """Return `package.module:Name`, as experiment files and journals name a class."""
    return f"{cls.__module__}:{cls.__qualname__}"
