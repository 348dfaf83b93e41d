"""Values of the virtual clock on their way between actors, over a described network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from raysync.virtual.calls import VirtualCall
from raysync.virtual.transfers import AnyRoute, FairRoute, PhaseNetwork

if TYPE_CHECKING:
    from raysync.virtual.virtual_backend import VirtualBackend


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
