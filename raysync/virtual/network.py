"""The links of workers, and those of servers, which workers share: when values arrive.

A link carries one transfer at a time each way, in the order in which transfers are requested: 16
workers that push at once through one server's link take 16 times as long as one. A transfer is on
the links of both ends at once (it is not stored between them), so it takes as long as the slower of
the two, and longer if the shared link is busy. A worker has one transfer with a server at a time
each way: nothing queues at its own link. All values from one site to another have the same size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf


@dataclass(slots=True)
class SharedLink:
    """One direction of a server's link."""

    s_per_byte: float
    free_at: float = 0.0
    """The time at which it has done all transfers so far, in seconds since the run began."""


@dataclass(frozen=True, slots=True)
class Path:
    """The way from one site to another, for a value of the size that travels there."""

    latency_s: float
    transfer_s: float
    """The seconds over the links of the two ends, without the latency."""
    shared: SharedLink | None = None
    shared_bytes: float = 0.0
    """The bytes of the value that go over the shared link; 0 if the whole value is there already,
    which takes no time."""

    def arrival(self, begin: float, added_s: float) -> float:
        """Send a value; return when it arrives, in seconds since the run began.

        Args:
            begin: when the value is ready and needed.
            added_s: the latency that faults add.
        """
        link = self.shared
        if link is None:
            return begin + (self.latency_s + added_s) + self.transfer_s
        if not self.shared_bytes or begin == inf:  # what never comes holds up nothing
            return begin
        free_at = (
            begin if begin > link.free_at else link.free_at
        ) + self.shared_bytes * link.s_per_byte
        link.free_at = free_at
        own_at = begin + self.transfer_s
        return (free_at if free_at > own_at else own_at) + self.latency_s + added_s


Paths = Mapping[str, Mapping[str, Path]]
"""Target -> source -> path; between other sites values take no time."""
