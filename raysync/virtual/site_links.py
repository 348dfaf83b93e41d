"""The ways between the sites of a run, as its experiment describes the network.

With m servers each has its own link and carries 1/m of the bytes, at the same time: they are equal,
so one of them is simulated. A server on a worker's node has that worker's part of the vector there:
1/m of the worker's bytes do not travel (with only one server nothing does: there is no latency
either); the shared link is then the worker's own, which carries that worker's transfers, too, or
its node's (of several, the slowest).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, repeat
from math import exp, inf
from typing import Any

from raysync.config import Experiment, Link, Network, WorkerGroup
from raysync.errors import ConfigError
from raysync.randomness import begun_key, standard_normal_at
from raysync.virtual.flows import FairLink, Lane
from raysync.virtual.transfers import AnyWay, FairWay, LongPath, Path, QueueLink

WEIGHTS = 1_009
"""The number of weights that are drawn: a prime, so that rounds of workers meet other ones."""


@dataclass(frozen=True, slots=True)
class _End:
    """What is at one end of a way."""

    links: tuple[Link, ...]
    """Its own links, which nothing shares."""
    region: str | None
    node: str | None
    """The node that it shares a link with others of."""


@dataclass(frozen=True, slots=True)
class _Way:
    """What goes one way."""

    size_bytes: float
    shares: Sequence[_Share]
    connections: int = 1
    """How many it is spread over evenly: one for each server."""
    trips: int = 0
    """The round trips before it."""
    is_from_one: bool = False
    """Whether all that shares links with it leaves the same host."""


@dataclass(frozen=True, slots=True)
class _Share:
    """What a value takes of a shared link."""

    link: tuple[str, str, str]
    """What it is the link of, its name and its direction."""
    bytes_per_s: float | None
    """Its bandwidth; None: without limit."""
    part: float = 1.0
    """The part of the value's bytes that goes over it."""


class SiteLinks:
    """The links of one run. What is shared stays the same link in all phases of a paradigm."""

    def __init__(self, experiment: Experiment, groups: Mapping[str, WorkerGroup]) -> None:
        """
        Args:
            experiment: describes the network.
            groups: worker slot -> its group, whose links it has.
        """
        self._experiment, self._groups = experiment, groups
        self._nodes = {node.name: node for node in experiment.network.nodes}
        self._node_of = {
            slot: node.name
            for node in experiment.network.nodes
            for slot in experiment.slots_of(node.workers)
        }
        self._weights = cycle(_weights(experiment))
        self._is_fair = experiment.network.sharing == "fair"
        self._queues: dict[tuple[str, str, str], QueueLink] = {}
        self._links: dict[tuple[str, str, str], FairLink] = {}
        self._has_latency = any(fault.adds_latency for fault in experiment.faults)

    def of_server(
        self,
        network: Network,
        slots: Mapping[str, str],
        server: str,
        push_bytes: float,
        pull_bytes: float,
    ) -> dict[str, dict[str, AnyWay]]:
        """Return the ways between workers and their server: target -> source -> way.

        Args:
            network: the network in a phase.
            slots: the site of each worker -> its slot.
            server: the server's site.
            push_bytes: the size of a gradient.
            pull_bytes: the size of the weights.
        """
        hosts = self._hosts(list(slots.values()))
        servers = self._experiment.cluster.server_shards
        server_bandwidth = self._server_bandwidth(network, hosts)
        home = self._experiment.server_region
        end = _End((), home, None)

        def ways_of(slot: str, away: int) -> list[AnyWay | None]:
            worker, ways = self._end(network, slot), []
            up, down = (
                _Share(("server", server, direction), server_bandwidth, 1 / servers)
                for direction in ("up", "down")
            )
            is_host = self._is_fair and slot in hosts and slot not in self._node_of
            for source, target, sent_bytes, trips, at_server, at_host in (
                (worker, end, push_bytes, 0, up, down),
                (end, worker, pull_bytes, network.pull_round_trips, down, up),
            ):
                # What a worker receives comes in over the link by which others push to the server
                # beside it. Of the links of all hosts, one is simulated, with its part of that.
                own = [at_host] if is_host else []
                way = _Way(
                    size_bytes=away / servers * sent_bytes,
                    connections=away,
                    shares=[*self._node_shares(source, target), at_server, *own],
                    trips=trips,
                    is_from_one=source is end,
                )
                ways.append(self._way(source, target, way))
            return ways

        paths: dict[str, dict[str, AnyWay]] = {server: {}}
        alike: dict[Any, list[AnyWay | None]] = {}
        """What the ways of a worker depend on -> its ways, up and down."""
        for site, slot in slots.items():
            away = servers - self._beside(slot, hosts)
            if not away:
                continue  # all servers are on its node
            kind = (id(self._groups[slot]), self._node_of.get(slot), away)
            if kind not in alike:
                alike[kind] = ways_of(slot, away)
            up, down = alike[kind]
            if up is not None:
                paths[server][site] = up
            if down is not None:
                paths[site] = {server: down}
        return paths

    def between(
        self, network: Network, source: str, target: str, size_bytes: float
    ) -> AnyWay | None:
        """Return the way from the worker in one slot to that in another, for values of that size;
        None: it takes no time.

        Raises:
            ConfigError: their regions have no link.
        """
        begin, end = self._end(network, source), self._end(network, target)
        if begin.node == end.node:
            begin, end = replace(begin, node=None), replace(end, node=None)
        # The links of the network are alike: a value passes the limit of `network.link` once.
        end = replace(end, links=end.links[1:])
        return self._way(begin, end, _Way(size_bytes, self._node_shares(begin, end)))

    def _end(self, network: Network, slot: str) -> _End:
        group, node = self._groups[slot], self._node_of.get(slot)
        return _End((network.link, group.link), group.region, node)

    def _way(self, source: _End, target: _End, way: _Way) -> AnyWay | None:
        """Return a way, or None if it takes no time."""
        links = [*source.links, *target.links, *self._between_regions(source, target)]
        back = [*source.links, *target.links, *self._between_regions(target, source)]
        node_s = sum(
            self._nodes[each.node].link.latency_s for each in (source, target) if each.node
        )
        latency_s = _latency(links) + node_s
        trip_s = latency_s + _latency(back) + node_s
        limit = min((link.bandwidth_bytes_per_s or inf for link in links), default=inf)
        shares = [share for share in way.shares if share.bytes_per_s and way.size_bytes]
        if shares and self._is_fair:
            return self._fair_way(way, shares, limit, latency_s, trip_s)
        latency_s += way.trips * trip_s
        transfer_s = way.size_bytes / limit
        if not (latency_s or transfer_s or shares or self._has_latency):
            return None
        queues = [
            (self._queue(share), way.size_bytes * share.part / share.bytes_per_s)
            for share in shares
            if share.bytes_per_s
        ]
        if len(queues) > 1 or way.trips:
            return LongPath(latency_s, transfer_s, tuple(queues), 1 + 2 * way.trips)
        return Path(latency_s, transfer_s, *(queues[0] if queues else ()))

    def _fair_way(
        self, way: _Way, shares: Sequence[_Share], limit: float, latency_s: float, trip_s: float
    ) -> FairWay:
        count = way.connections
        links = [(self._link(share), count * share.part) for share in shares]
        return FairWay(
            lane=Lane(limit / count, links),
            size_bytes=way.size_bytes / count,
            latency_s=latency_s,
            weights=repeat(1.0) if way.is_from_one else self._weights,
            trips=way.trips,
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
        """Return what a value takes of the links out of the source's node and into the target's."""
        return [
            _Share(("node", end.node, direction), self._nodes[end.node].link.bandwidth_bytes_per_s)
            for end, direction in ((source, "out"), (target, "in"))
            if end.node is not None
        ]

    def _queue(self, share: _Share) -> QueueLink:
        return self._queues.setdefault(share.link, QueueLink())

    def _link(self, share: _Share) -> FairLink:
        """Return the link of a share; in another phase it may have another bandwidth."""
        assert share.bytes_per_s is not None, "a link without limit"
        link = self._links.setdefault(share.link, FairLink(share.bytes_per_s))
        link.bytes_per_s = share.bytes_per_s
        return link

    def _hosts(self, slots: list[str]) -> Counter[str]:
        """Return the slots that servers are placed with -> how many."""
        return Counter(slots[host] for host in self._experiment.cluster.hosts(len(slots)))

    def _beside(self, slot: str, hosts: Counter[str]) -> int:
        """Return how many servers are where a worker is: with it, or on its node."""
        node = self._node_of.get(slot)
        if node is None:
            return hosts[slot]
        return sum(count for host, count in hosts.items() if self._node_of.get(host) == node)

    def _server_bandwidth(self, network: Network, hosts: Counter[str]) -> float | None:
        """Return the bandwidth of a server's link: the slowest there is where servers are; None: it
        has no limit.
        """
        rates = [network.server_bandwidth_bytes_per_s]
        for host in hosts:
            rates += [link.bandwidth_bytes_per_s for link in self._end(network, host).links]
            if (node := self._node_of.get(host)) is not None:
                rates.append(self._nodes[node].link.bandwidth_bytes_per_s)
        return min((rate for rate in rates if rate is not None), default=None)


def _weights(experiment: Experiment) -> Iterable[float]:
    """Return the weights of transfers, in turns: the first few, since one draw a transfer would
    take as long as the transfer's simulation.
    """
    sigma, begun = experiment.network.share_sigma, begun_key(experiment.seed, "share")
    if not sigma:
        return (1.0,)
    return [exp(sigma * standard_normal_at(begun, number)) for number in range(WEIGHTS)]


def _latency(links: Iterable[Link]) -> float:
    return sum(link.latency_s for link in links)
