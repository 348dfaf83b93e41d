"""Routes: when a value arrives, over the links of workers and shared ones of servers and nodes.

`network_routes` divides its bytes by the bandwidths. A transfer is on the links of both ends at
once, not stored between them. Latency is added, and leaves the links free. All values from one site
to another have the same size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from raysync.step_fault import StepFault
from raysync.virtual.flows import Arrived, Clock, Lane
from raysync.virtual.virtual_calls import VirtualCall

if TYPE_CHECKING:
    from raysync.virtual.virtual_backend import VirtualBackend


@dataclass(frozen=True, slots=True)
class Path:
    """A route over the two ends' own links, on which the arrival is known at once.

    A worker has one transfer with a server at a time each way, so nothing queues there.
    """

    latency_s: float  # the route's, and its round trips'
    transfer_s: float  # without latency
    latencies: int = 1  # how often a fault's latency is added: once, and twice for each round trip

    def arrival(self, begin: float, fault: StepFault) -> float:
        """Send a value; return its arrival, in seconds since the run began.

        Args:
            begin: when the value is ready and needed.
            fault: the fault of a worker's link.
        """
        return begin + (self.latency_s + self.latencies * fault.latency_s) + self.transfer_s


@dataclass(frozen=True, slots=True)
class FairRoute:
    """A route over shared links, whose transfers are all at once, as over TCP."""

    # weight -> the lane of flows of that weight: if their own link limits them, they have a lane
    # for themselves, since all flows of a lane have one rate for each weight
    lanes: Mapping[float, Lane]
    size_bytes: float
    latency_s: float
    weights: Iterator[float]  # each transfer's relative share of a link
    trips: int = 0  # round trips before the first byte
    trip_s: float = 0.0  # seconds of a round trip

    def send(
        self, clock: Clock, begin: float, fault: StepFault, arrived: Arrived, argument: Any
    ) -> None:
        """Send a value that is ready and needed at `begin`; see `Lane.begin`."""
        begin += self.trips * (self.trip_s + 2 * fault.latency_s)
        weight = next(self.weights)
        lane = self.lanes[weight]
        flow = (self.size_bytes, weight, self.latency_s + fault.latency_s, arrived, argument)
        if begin > clock.now:
            clock.schedule(begin, lambda _: lane.begin(clock, *flow), None)
        else:
            lane.begin(clock, *flow)


AnyRoute = Path | FairRoute
Paths = Mapping[str, Mapping[str, AnyRoute]]  # target -> source -> route; other values take no time


@dataclass(frozen=True, slots=True)
class PhaseNetwork:
    """The network in one phase of a paradigm."""

    paths: Paths
    push_s: float = 0.0  # each push's time in the coordinator
    changes: bool = False  # whether phases may differ


class VirtualTransit:
    """The network of one run, as `Transit` of its backend."""

    def __init__(
        self,
        backend: VirtualBackend,
        network_of: Callable[[str], PhaseNetwork],  # a phase -> its network, when it begins
        phase: str,  # the first
    ) -> None:
        self._backend, self._network_of = backend, network_of
        self._coordinator_free_at = 0.0  # when the coordinator has received all pushes so far
        self.enter_phase(phase)

    def routes_to(self, site: str) -> Mapping[str, AnyRoute] | None:
        """Return source -> route to a place, in the current phase; None: no routes."""
        return self._paths.get(site)

    def enter_phase(self, phase: str) -> None:
        # what is in transit stays as it is
        network = self._network_of(phase)
        self._paths, self._push_s = network.paths, network.push_s
        self.delivers = network.changes or self._push_s > 0 or any(self._paths.values())
        for process in self._backend.processes.of_actor.values():
            process.routes = self._paths.get(process.site)

    def late_s(self, value: VirtualCall) -> float:
        late_s = value.at - self._backend.now
        return late_s if 0.0 < late_s < inf else 0.0  # inf: of a server that was lost

    def deliver(self, value: VirtualCall, actor: str) -> tuple[VirtualCall, ...]:
        # The coordinator receives values in the order of their arrival, so a delivery's end is
        # unknown until then.
        processes = self._backend.processes
        process = processes.of_actor.get(actor) or processes.start(actor)
        site, routes, now = process.site, process.routes, self._backend.now
        route = routes.get(value.site) if routes else None
        value.site = site
        if isinstance(route, FairRoute):
            delivery = VirtualCall(inf, site, followers=[])
            value.at, value.followers = inf, []
            route.send(self._backend, now, value.fault, self._delivered, (value, delivery))
            return (delivery,)
        value.at = at = now if route is None else route.arrival(now, value.fault)
        if self._push_s:
            return (VirtualCall(inf, site, arrives_at=at),)
        return (VirtualCall(at, site),) if at > now else ()

    def _delivered(self, sent: tuple[VirtualCall, VirtualCall], at: float) -> None:
        """Note the arrival of a value at its server."""
        value, delivery = sent
        value.at = at
        if self._push_s:
            delivery.arrives_at = at
        else:
            delivery.at = at
        self._backend.notify(value)
        self._backend.notify(delivery)

    def receive_push(self, waiting: tuple[VirtualCall, Callable[[Any], None], Any]) -> None:
        """Let the coordinator receive a push that has arrived, after those before it."""
        delivery, then, argument = waiting
        self._coordinator_free_at = max(self._backend.now, self._coordinator_free_at) + self._push_s
        delivery.at = self._coordinator_free_at
        self._backend.watch(delivery, then, argument)
