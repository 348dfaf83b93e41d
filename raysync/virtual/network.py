"""When vectors arrive: the workers' links, the links of the servers that they share, and the servers' work.

    upload     through the server's shared link, bytes / bandwidth of the worker's link at the same time, then the latency
    update     waits for its gradients and for the update before it; then update_s + pushes x bytes / update_bytes_per_s
    download   once the update is done, as the upload

A shared link carries one transfer at a time, in order of request, each way by itself: 16 workers that push at once take 16
times as long as one. A transfer is on both links at once (it is not stored between them), so it takes as long as the slower
of the two, and longer if the shared one is taken. A worker has one transfer at a time each way: nothing queues at its own
link.

The upload begins with the Apply that uses the push, not with the push: so Ray does it, which fetches what an actor call
needs when the call is made. What is dropped never travels. With m servers each has its own link and carries 1/m of the
bytes, at the same time: they are alike, so one of them is followed. A server that sits with a worker has that worker's
part of the vector at hand: 1/m of the worker's bytes do not travel (with the only server, nothing does: no latency either);
the shared link is then the worker's own (of several, the slowest).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from raysync.config import Experiment, WorkerGroup
from raysync.emulation import one_way_s


@dataclass(frozen=True, slots=True)
class Way:
    """Between one worker and the servers, each way."""

    latency_s: float
    transfer_s: float
    """Of a vector over the worker's own link, without the latency."""
    shared_bytes: float
    """Of a vector, on the shared link of one server."""


class Gradient(Protocol):
    """What travels to the server."""

    way: Way
    latency_s: float
    """That troubles add."""


class Network:
    """Workers, servers and what is between them, for vectors of one size."""

    def __init__(self, experiment: Experiment, groups: Mapping[str, WorkerGroup], vector_bytes: int) -> None:
        """
        Args:
            experiment: its `network`, and how many servers it has, where.
            groups: worker slot -> group.
            vector_bytes: of a gradient, and of the weights.
        """
        network, servers = experiment.network, experiment.cluster.server_shards
        together = experiment.cluster.server_placement == "with-workers"
        slots = list(groups)
        hosts = Counter(slots[shard % len(slots)] for shard in range(servers)) if together else Counter[str]()
        links = {group.name: (network.link, group.link) for group in groups.values()}
        at_servers = [link.bandwidth_bytes_per_s for host in hosts for link in links[groups[host].name]]
        limits = [rate for rate in (network.server_bandwidth_bytes_per_s, *at_servers) if rate is not None]
        self.ways: dict[str, Way] = {}
        """Worker slot -> its connection."""
        for slot, group in groups.items():
            away = 1 - hosts[slot] / servers
            latency_s = sum(link.latency_s for link in links[group.name])
            transfer_s = max(one_way_s(link, vector_bytes) - link.latency_s for link in links[group.name])
            self.ways[slot] = Way(latency_s, away * transfer_s, away * vector_bytes / servers)
        self._s_per_byte = 1 / min(limits) if limits else 0.0
        self._up_free_at = self._down_free_at = 0.0
        self._update_s = network.update_s
        self._reading_s = vector_bytes / servers / (network.update_bytes_per_s or float("inf"))
        self.updated_at = 0.0
        """When the latest update was, or will be, done; in seconds since the run began."""
        self._published_at = 0.0
        """When the one was whose weights are pulled."""

    def update(self, gradients: Sequence[Gradient], now: float, *, publish: bool = True) -> None:
        """The update of an Apply, decided now: moves `updated_at`. Without `publish`, downloads do not wait for it."""
        begin = now if now > self.updated_at else self.updated_at
        free_at = now if now > self._up_free_at else self._up_free_at
        for gradient in gradients:
            way = gradient.way
            if way.shared_bytes:  # else the only server sits with this worker
                free_at += way.shared_bytes * self._s_per_byte
                own_at = now + way.transfer_s
                arrived_at = (free_at if free_at > own_at else own_at) + way.latency_s + gradient.latency_s
                begin = arrived_at if arrived_at > begin else begin
        self._up_free_at = free_at
        self.updated_at = begin + self._update_s + len(gradients) * self._reading_s
        if publish:
            self._published_at = self.updated_at

    def download(self, way: Way, now: float, added_s: float) -> float:
        """When the published weights are at a worker that is released now; troubles add so many seconds of latency."""
        begin = now if now > self._published_at else self._published_at
        if not way.shared_bytes:
            return begin
        free_at = begin if begin > self._down_free_at else self._down_free_at
        self._down_free_at = free_at = free_at + way.shared_bytes * self._s_per_byte
        own_at = begin + way.transfer_s
        return (free_at if free_at > own_at else own_at) + way.latency_s + added_s
