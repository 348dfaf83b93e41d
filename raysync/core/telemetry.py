"""The telemetry table: one row a member, the times that adaptive paradigms decide from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Telemetry:
    """When a worker was last released and when it last pushed. All values in seconds since the run
    began.
    """

    released_at: float | None = None
    """Latest Release."""
    pushed_at: float | None = None
    """Latest push."""
    interval_s: float | None = None
    """Between the two latest pushes: computing, transfer and waiting. None before the second
    push."""
    active_s: float | None = None
    """From the latest push's Release to that push: the interval without the worker's own waiting.
    None before a push."""
    busy_s: float = 0.0
    """Seconds of computing of the latest push."""

    def push(self, at: float, busy_s: float) -> None:
        """A push arrived now."""
        assert self.released_at is not None, "a push without a release"
        if self.pushed_at is not None:
            self.interval_s = at - self.pushed_at
        self.active_s = at - self.released_at
        self.pushed_at = at
        self.busy_s = busy_s
