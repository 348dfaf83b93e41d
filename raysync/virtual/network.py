"""When values arrive: the links of workers, and those of servers that they share.

A link carries one transfer at a time each way, in the order in which transfers are asked for: 16
workers that push at once through one server's link take 16 times as long as one. A transfer is on
the links of both ends at once (it is not stored between them), so it takes as long as the slower of
the two, and longer if the shared one is taken. A worker has one transfer with a server at a time
each way: nothing queues at its own link. What goes from one site to another is always of one size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class SharedLink:
    """One way through the link of a server."""

    s_per_byte: float
    free_at: float = 0.0
    """When it has carried all that it was asked to, in seconds since the run began."""


@dataclass(frozen=True, slots=True)
class Path:
    """The way from one site to another, for a value of the size that goes there."""

    latency_s: float
    transfer_s: float
    """Seconds over the ends' own links, without the latency."""
    shared: SharedLink | None = None
    shared_bytes: float = 0.0
    """What of the value goes over the shared link; 0: all of it is at hand, and takes no time."""

    def arrival(self, begin: float, added_s: float) -> float:
        """Send a value; returns when it is there, in seconds since the run began.

        Args:
            begin: when it is there and needed.
            added_s: latency that faults add.
        """
        link = self.shared
        if link is None:
            return begin + (self.latency_s + added_s) + self.transfer_s
        if not self.shared_bytes:
            return begin
        free_at = (
            begin if begin > link.free_at else link.free_at
        ) + self.shared_bytes * link.s_per_byte
        link.free_at = free_at
        own_at = begin + self.transfer_s
        return (free_at if free_at > own_at else own_at) + self.latency_s + added_s


Paths = Mapping[str, Mapping[str, Path]]
"""Target -> source -> path; between other sites nothing takes time."""
