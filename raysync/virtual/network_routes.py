"""The routes between the sites of a run, by its experiment's `network`.

With m servers each has its own link and carries 1/m of the bytes in parallel: one is simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, repeat
from math import exp, inf
from statistics import fmean
from typing import Any

from raysync.config import Experiment, Link, Network, WorkerGroup
from raysync.errors import ConfigError
from raysync.randomness import hash_prefix, standard_normal_at
from raysync.virtual.flows import FairLink, Lane
from raysync.virtual.transfers import AnyRoute, FairRoute, Path

# the number of weights drawn: a prime, so that a worker's weight changes from round to round
WEIGHTS = 1_009
# the number of different weights where flows are limited by their own links, too: an event costs as
# much as that many lanes
LEVELS = 16


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a route."""

    links: tuple[Link, ...]  # its own links, which are not shared
    region: str | None
    node: str | None  # the node whose link it shares with others


@dataclass(frozen=True, slots=True)
class _Load:
    """The load of a route."""

    size_bytes: float
    shares: Sequence[_Share]
    connections: int = 1  # one for each server; the load is spread evenly over them
    trips: int = 0  # round trips before the first byte
    is_from_one: bool = False  # all values that share links with it leave the same host


@dataclass(frozen=True, slots=True)
class _Share:
    """A value's share of a shared link."""

    link: tuple[str, str, str]  # its owner's kind and name, and its direction
    bytes_per_s: float | None  # None: without limit
    part: float = 1.0  # the part of the value's bytes on the link


class NetworkRoutes:
    """The links of one run. A shared link stays the same in all phases of a paradigm.

    A server on a worker's node has the worker's part of the vector there: 1/m of its bytes do not
    travel (with one server nothing does, without latency). The shared link is then the worker's
    own, which carries the worker's transfers, too, or its node's (of several, the slowest).
    """

    def __init__(self, experiment: Experiment, groups: Mapping[str, WorkerGroup]) -> None:
        self._experiment, self._groups = experiment, groups
        self._nodes = {node.name: node for node in experiment.network.nodes}
        self._node_of = {
            slot: node.name
            for node in experiment.network.nodes
            for slot in experiment.slots_of(node.workers)
        }
        self._drawn = _weights(experiment)
        self._few = _levels(self._drawn)
        # one stream for all routes of a kind: a worker's weight changes from round to round
        self._weights, self._few_weights = cycle(self._drawn), cycle(self._few)
        self._links: dict[tuple[str, str, str], FairLink] = {}
        self._has_latency = any(fault.adds_latency for fault in experiment.faults)

    def of_server(
        self,
        network: Network,  # in a phase
        slots: Mapping[str, str],  # the site of each worker -> its slot
        server: str,  # the server's site
        push_bytes: float,  # the size of a gradient
        pull_bytes: float,  # the size of the weights
    ) -> dict[str, dict[str, AnyRoute]]:
        """Return the routes between workers and their server: target -> source -> route."""
        hosts = self._hosts(list(slots.values()))
        servers = self._experiment.cluster.server_shards
        server_bandwidth = self._server_bandwidth(network, hosts)
        server_end = _End((), self._experiment.server_region, None)

        def routes_of(slot: str, away: int) -> list[AnyRoute | None]:
            worker, routes = self._end(network, slot), []
            up, down = (
                _Share(("server", server, direction), server_bandwidth, 1 / servers)
                for direction in ("up", "down")
            )
            is_host = slot in hosts and slot not in self._node_of
            for source, target, sent_bytes, trips, at_server, at_host in (
                (worker, server_end, push_bytes, 0, up, down),
                (server_end, worker, pull_bytes, network.pull_round_trips, down, up),
            ):
                # A host of a server receives weights over the link by which others push to that
                # server. Of all hosts' links one is simulated, with its part of the weights.
                host_shares = [at_host] if is_host else []
                load = _Load(
                    size_bytes=away / servers * sent_bytes,
                    connections=away,
                    shares=[*self._node_shares(source, target), at_server, *host_shares],
                    trips=trips,
                    is_from_one=source is server_end,
                )
                routes.append(self._route(source, target, load))
            return routes

        paths: dict[str, dict[str, AnyRoute]] = {server: {}}
        # all that a worker's routes depend on -> its routes, up and down
        routes_by_kind: dict[Any, list[AnyRoute | None]] = {}
        for site, slot in slots.items():
            away = servers - self._count_servers_near(slot, hosts)
            if not away:
                continue  # all servers are on its node
            kind = (id(self._groups[slot]), self._node_of.get(slot), away)
            if kind not in routes_by_kind:
                routes_by_kind[kind] = routes_of(slot, away)
            up, down = routes_by_kind[kind]
            if up is not None:
                paths[server][site] = up
            if down is not None:
                paths[site] = {server: down}
        return paths

    def between(
        self, network: Network, source: str, target: str, size_bytes: float
    ) -> AnyRoute | None:
        """Return the route between two workers' slots; None: it takes no time.

        Raises:
            ConfigError: their regions have no link.
        """
        begin, end = self._end(network, source), self._end(network, target)
        if begin.node == end.node:
            begin, end = replace(begin, node=None), replace(end, node=None)
        # Both ends begin with `network.link`: a value passes its limit once.
        end = replace(end, links=end.links[1:])
        return self._route(begin, end, _Load(size_bytes, self._node_shares(begin, end)))

    def _hosts(self, slots: list[str]) -> Counter[str]:
        """Return slot with servers beside it -> number of servers."""
        return Counter(slots[host] for host in self._experiment.cluster.hosts(len(slots)))

    def _server_bandwidth(self, network: Network, hosts: Counter[str]) -> float | None:
        """Return the slowest bandwidth of a server's link; None: without limit."""
        rates = [network.server_bandwidth_bytes_per_s]
        for host in hosts:
            rates += [link.bandwidth_bytes_per_s for link in self._end(network, host).links]
            if (node := self._node_of.get(host)) is not None:
                rates.append(self._nodes[node].link.bandwidth_bytes_per_s)
        return min((rate for rate in rates if rate is not None), default=None)

    def _count_servers_near(self, slot: str, hosts: Counter[str]) -> int:
        """Count the servers beside a worker, or on its node."""
        node = self._node_of.get(slot)
        if node is None:
            return hosts[slot]
        return sum(count for host, count in hosts.items() if self._node_of.get(host) == node)

    def _end(self, network: Network, slot: str) -> _End:
        group, node = self._groups[slot], self._node_of.get(slot)
        return _End((network.link, group.link), group.region, node)

    def _route(self, source: _End, target: _End, load: _Load) -> AnyRoute | None:
        """Return a route, or None if it takes no time."""
        links = [*source.links, *target.links, *self._between_regions(source, target)]
        links_back = [*source.links, *target.links, *self._between_regions(target, source)]
        node_s = sum(
            self._nodes[each.node].link.latency_s for each in (source, target) if each.node
        )
        latency_s = _latency_s(links) + node_s
        trip_s = latency_s + _latency_s(links_back) + node_s
        limit = min((link.bandwidth_bytes_per_s or inf for link in links), default=inf)
        shares = [share for share in load.shares if share.bytes_per_s and load.size_bytes]
        if shares:
            return self._fair_route(load, shares, limit, latency_s, trip_s)
        latency_s += load.trips * trip_s
        transfer_s = load.size_bytes / limit
        if not (latency_s or transfer_s or self._has_latency):
            return None
        return Path(latency_s, transfer_s, 1 + 2 * load.trips)

    def _fair_route(
        self, load: _Load, shares: Sequence[_Share], limit: float, latency_s: float, trip_s: float
    ) -> FairRoute:
        count = load.connections
        links = [(self._fair_link(share), count * share.part) for share in shares]
        own = limit / count
        weights: Iterator[float]
        if load.is_from_one:
            lanes, weights = {1.0: Lane(own, links)}, repeat(1.0)
        elif own == inf:
            lanes, weights = dict.fromkeys(self._drawn, Lane(own, links)), self._weights
        else:
            lanes = {weight: Lane(own, links) for weight in set(self._few)}
            weights = self._few_weights
        return FairRoute(
            lanes=lanes,
            size_bytes=load.size_bytes / count,
            latency_s=latency_s,
            weights=weights,
            trips=load.trips,
            trip_s=trip_s,
        )

    def _between_regions(self, source: _End, target: _End) -> list[Link]:
        regions = self._experiment.network.regions
        if regions is None:
            return []
        assert source.region is not None
        assert target.region is not None
        link = regions.between(source.region, target.region)
        if link is None:
            raise ConfigError(
                f"network.regions: there is no link from {source.region!r} to {target.region!r}."
            )
        return [link]

    def _node_shares(self, source: _End, target: _End) -> list[_Share]:
        """Return a value's shares of the links out of the source's node and into the target's."""
        return [
            _Share(("node", end.node, direction), self._nodes[end.node].link.bandwidth_bytes_per_s)
            for end, direction in ((source, "out"), (target, "in"))
            if end.node is not None
        ]

    def _fair_link(self, share: _Share) -> FairLink:
        assert share.bytes_per_s is not None, "a link without limit"
        link = self._links.setdefault(share.link, FairLink(share.bytes_per_s))
        link.bytes_per_s = share.bytes_per_s  # may differ from phase to phase
        return link


def _levels(weights: Sequence[float]) -> list[float]:
    """Replace weights by the means of at most `LEVELS` groups of about equal weights."""
    order = sorted(range(len(weights)), key=weights.__getitem__)
    levels = list(weights)
    for group in range(LEVELS):
        members = order[group * len(order) // LEVELS : (group + 1) * len(order) // LEVELS]
        for index in members:
            levels[index] = fmean(weights[each] for each in members)
    return levels


def _weights(experiment: Experiment) -> Sequence[float]:
    # A fixed number of draws repeats: a draw takes as long as the simulation of a transfer.
    sigma, begun = experiment.network.share_sigma, hash_prefix(experiment.seed, "share")
    if not sigma:
        return (1.0,)
    return [exp(sigma * standard_normal_at(begun, number)) for number in range(WEIGHTS)]


def _latency_s(links: Iterable[Link]) -> float:
    return sum(link.latency_s for link in links)
