"""The telemetry table: a row of times for each member, for adaptive paradigms."""

from __future__ import annotations

import msgspec

from raysync.core.structs import Seconds


class Telemetry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The latest times of a worker, in seconds since the run began, and its intervals."""

    released_at: Seconds | None = None
    pushed_at: Seconds | None = None
    # the time between the two latest pushes: computing, transfer and waiting
    interval_s: Seconds | None = None
    # the time from Release to push: the interval without the worker's own waiting
    active_s: Seconds | None = None
    busy_s: Seconds = 0.0  # the time of computing alone, for the latest push

    def push(self, at: float, busy_s: float) -> None:
        """Record a push that arrived at that time."""
        assert self.released_at is not None, "a push without a release"
        if self.pushed_at is not None:
            self.interval_s = at - self.pushed_at
        self.active_s = at - self.released_at
        self.pushed_at = at
        self.busy_s = busy_s
