"""The ways of values over the links of workers, and over those of servers and nodes, which workers
share.

A transfer is on the links of both ends at once (it is not stored between them). Transfers that
share a link do so as the experiment says (`network.sharing`):

    fair           at the same rate, as TCP connections do: see `flows`
    first-come     one at a time each way, in the order in which they are requested

A worker has one transfer with a server at a time each way: nothing queues at its own link. Latency
comes on top of all that, and while it passes the links are free. All values from one site to
another have the same size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from raysync.step_fault import StepFault
from raysync.virtual.flows import Arrived, Clock, Lane


@dataclass(slots=True)
class QueueLink:
    """One direction of a link of a server or a node, where transfers queue."""

    free_at: float = 0.0
    """The time at which it has done all transfers so far, in seconds since the run began."""


class Way(Protocol):
    """How values get from one site to another, if it is known at once when they arrive."""

    def arrival(self, begin: float, fault: StepFault) -> float:
        """Send a value; return when it arrives, in seconds since the run began.

        Args:
            begin: when the value is ready and needed.
            fault: what faults of a worker do to the way.
        """


@dataclass(frozen=True, slots=True)
class Path:
    """The way over the two ends' own links, and at most one shared link: the usual one."""

    latency_s: float
    transfer_s: float
    """The seconds over the links that are not shared, without the latency."""
    shared: QueueLink | None = None
    shared_s: float = 0.0
    """The seconds that the value takes of the shared link."""

    def arrival(self, begin: float, fault: StepFault) -> float:
        link = self.shared
        if link is None:
            return begin + (self.latency_s + fault.latency_s) + self.transfer_s
        if begin == inf:
            return begin  # what never comes holds up nothing
        free_at = (begin if begin > link.free_at else link.free_at) + self.shared_s
        link.free_at = free_at
        own_at = begin + self.transfer_s
        return (free_at if free_at > own_at else own_at) + self.latency_s + fault.latency_s


@dataclass(frozen=True, slots=True)
class LongPath:
    """A way over any number of shared links, with round trips."""

    latency_s: float
    """The latency of the way itself and of its round trips."""
    transfer_s: float
    """The seconds over the links that are not shared, without the latency."""
    shared: tuple[tuple[QueueLink, float], ...] = ()
    """The shared links, each with the seconds that the value takes of it."""
    ways: int = 1
    """How often the latency of faults is added: once, and twice for each round trip."""

    def arrival(self, begin: float, fault: StepFault) -> float:
        if begin == inf:
            return begin  # what never comes holds up nothing
        arrival = begin + self.transfer_s
        for link, link_s in self.shared:
            link.free_at = max(begin, link.free_at) + link_s
            arrival = max(arrival, link.free_at)
        return arrival + self.latency_s + self.ways * fault.latency_s


@dataclass(frozen=True, slots=True)
class FairWay:
    """A way over shared links whose transfers all go on at the same time."""

    lane: Lane
    size_bytes: float
    latency_s: float
    weights: Iterator[float]
    """The weight of each transfer, which says how large its share of a link is."""
    trips: int = 0
    """The round trips before the first byte."""
    trip_s: float = 0.0
    """The seconds of each."""

    def send(
        self, clock: Clock, begin: float, fault: StepFault, arrived: Arrived, argument: Any
    ) -> None:
        """Send a value.

        Args:
            clock: moves the time.
            begin: when the value is ready and needed.
            fault: what faults of a worker do to the way.
            arrived: called with `argument` and the time of its arrival, when that is known.
            argument: see `arrived`.
        """
        begin += self.trips * (self.trip_s + 2 * fault.latency_s)
        flow = (
            self.size_bytes,
            next(self.weights),
            self.latency_s + fault.latency_s,
            arrived,
            argument,
        )
        if begin > clock.now:
            clock.schedule(begin, lambda _: self.lane.begin(clock, *flow), None)
        else:
            self.lane.begin(clock, *flow)


AnyWay = Way | FairWay
Paths = Mapping[str, Mapping[str, AnyWay]]
"""Target -> source -> way; between other sites values take no time."""


@dataclass(frozen=True, slots=True)
class PhaseNetwork:
    """What a backend has to know of the network in one phase of a paradigm."""

    paths: Paths
    push_s: float = 0.0
    """The seconds that each push takes the coordinator."""
    changes: bool = False
    """Whether another phase may have another network."""
