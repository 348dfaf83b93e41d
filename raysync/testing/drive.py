"""A machine that a test drives by hand, without an engine."""

from __future__ import annotations

from raysync.core.decisions import Decision
from raysync.core.events import Joined, Left, Pushed, TimerFired
from raysync.core.machine import Machine
from raysync.core.paradigm import Paradigm

SAMPLES = 32  # the batch size of every step


class Drive:
    """A machine with its own clock; each method feeds one event and returns the decisions.

    drive = Drive(EveryOther(), "a#1", "b#1")
    assert drive.push("a#1", at=1.0) == [...]
    """

    def __init__(
        self, paradigm: Paradigm, *workers: str, workload_samples: int | None = None
    ) -> None:
        """The workers join at once; `workload_samples` is for a paradigm that reads progress."""
        self.machine = Machine(paradigm, workload_samples)
        self.roster = self.machine.roster
        self.now = 0.0  # seconds; the default time of an event
        for worker in workers:
            self.join(worker)

    def join(self, worker: str, at: float | None = None) -> list[Decision]:
        """Join a worker."""
        return self.machine.handle(Joined(at=self._advance(at), worker=worker))

    def leave(self, worker: str, at: float | None = None) -> list[Decision]:
        """Remove a worker."""
        return self.machine.handle(Left(at=self._advance(at), worker=worker))

    def tick(self, key: str) -> list[Decision]:
        """Fire a timer when it is due, or now if that is later."""
        at = self._advance(max(self.now, self.machine.timers[key]))
        return self.machine.handle(TimerFired(at=at, key=key))

    def push(
        self,
        worker: str,
        at: float | None = None,
        clock: int | None = None,
        base: int | None = None,
        samples: int = SAMPLES,
        busy_s: float = 0.0,
    ) -> list[Decision]:
        """Send a worker's push.

        By default it belongs to the iteration in flight, and `base` is the oldest version that this
        may have read. `samples` is the batch size of each step; a release sets the steps.
        """
        member = self.roster.live.get(worker)
        if clock is None or base is None:
            assert member is not None, f"{worker} is not live: give the push's clock and base"
            clock = member.clock if clock is None else clock
            base = member.version if base is None else base
        steps = (member and member.steps) or 1
        return self.machine.handle(
            Pushed(
                at=self._advance(at),
                worker=worker,
                clock=clock,
                base=base,
                samples=steps * samples,
                busy_s=busy_s,
                steps=steps,
            )
        )

    def _advance(self, at: float | None) -> float:
        self.now = self.now if at is None else at
        return self.now
