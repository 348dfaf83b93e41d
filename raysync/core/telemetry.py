"""The telemetry table: one row for each member, with the times that adaptive paradigms use."""

from __future__ import annotations

import msgspec

from raysync.core.structs import Seconds


class Telemetry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The latest times of a worker, in seconds since the run began, and its intervals, in
    seconds.
    """

    released_at: Seconds | None = None
    """The time of the latest Release."""
    pushed_at: Seconds | None = None
    """The time of the latest push."""
    interval_s: Seconds | None = None
    """The time between the two latest pushes: computing, transfer and waiting. None before the
    second push."""
    active_s: Seconds | None = None
    """The time from the latest push's Release to that push: the interval without the worker's own
    waiting. None before a push."""
    busy_s: Seconds = 0.0
    """The seconds of computing of the latest push."""

    def push(self, at: float, busy_s: float) -> None:
        """Record a push that arrived at that time."""
        assert self.released_at is not None, "a push without a release"
        if self.pushed_at is not None:
            self.interval_s = at - self.pushed_at
        self.active_s = at - self.released_at
        self.pushed_at = at
        self.busy_s = busy_s
