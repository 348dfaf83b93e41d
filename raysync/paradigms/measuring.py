"""The common part of wrappers that measure the workers."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

from typing_extensions import override

from raysync.core.decisions import Decision, Push
from raysync.core.ids import WorkerId
from raysync.core.roster import Roster
from raysync.paradigms.wrapper import Wrapper


@dataclass
class Measuring(Wrapper):
    """A wrapper that measures each worker at its pushes, and compares the members regularly."""

    compared_at: int = field(default=0, init=False)  # pushes received at the latest comparison
    members_changed: bool = field(default=False, init=False)  # since that comparison

    @abstractmethod
    def measure(self, roster: Roster, push: Push) -> None: ...

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        self.measure(roster, push)
        return super().on_push(roster, push)

    @override
    def on_join(self, roster: Roster, worker: str) -> list[Decision]:
        self.members_changed = True
        return super().on_join(roster, worker)

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        self.members_changed = True
        return super().on_leave(roster, worker)

    def is_time_to_compare(self, roster: Roster) -> bool:
        """Return whether, since the last comparison, members changed or as many pushes came in."""
        return self.members_changed or roster.received - self.compared_at >= len(roster.members)

    def note_comparison(self, roster: Roster) -> None:
        self.compared_at, self.members_changed = roster.received, False


def slot_of(worker: str) -> str:
    """Return the slot of a worker, which its next life will have."""
    return str(WorkerId(worker).slot) or worker


def smooth(smoothed: dict[str, float], slot: str, value: float, weight: float) -> None:
    """Update the slot's exponential average."""
    before = smoothed.get(slot, value)
    smoothed[slot] = before + weight * (value - before)
