"""The seconds of an all-reduce: the workers of a round exchange their gradients among themselves,
and each then has their sum.

    ring    reduce-scatter, then all-gather: 2 (n - 1) steps, in each of which every worker sends
            1/n of the vector to the next one. 2 (n - 1) / n * bytes / bandwidth
            + 2 (n - 1) * latency
    tree    reduce to the root, then broadcast: 2 * ceil(log2 n) levels, on each of which the whole
            vector travels. 2 * ceil(log2 n) * (latency + bytes / bandwidth)

Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005), sections 4.2 (binomial tree) and 4.5 (ring), without the seconds of adding, which the
update has. A ring is best for long vectors, a tree for short ones; libraries choose by size, as
`all-reduce` does here.

Bandwidth and latency are those of the slowest link of the round's workers: every step waits for
all. All begin once the last gradient is computed; nothing overlaps with the backward pass, as in
torch's DistributedDataParallel with one bucket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log2
from typing import Any

from raysync.config import Experiment, WorkerGroup
from raysync.engine.topology import SERVER


def ring_s(
    workers: int, size_bytes: float, latency_s: float, bandwidth_bytes_per_s: float
) -> float:
    """Return the seconds of an all-reduce over a ring.

    Args:
        workers: at least one; of one it takes no time.
        size_bytes: the size of the vector of each.
        latency_s: of the slowest link, one way.
        bandwidth_bytes_per_s: of the slowest link; inf: without limit.
    """
    steps = 2 * (workers - 1)
    return steps / workers * size_bytes / bandwidth_bytes_per_s + steps * latency_s


def tree_s(
    workers: int, size_bytes: float, latency_s: float, bandwidth_bytes_per_s: float
) -> float:
    """Return the seconds of a reduction over a binomial tree, and of the broadcast back; see
    `ring_s`.
    """
    return 2 * ceil(log2(workers)) * (latency_s + size_bytes / bandwidth_bytes_per_s)


def faster_s(
    workers: int, size_bytes: float, latency_s: float, bandwidth_bytes_per_s: float
) -> float:
    """Return the seconds of the faster of the two; see `ring_s`."""
    link = latency_s, bandwidth_bytes_per_s
    return min(ring_s(workers, size_bytes, *link), tree_s(workers, size_bytes, *link))


COLLECTIVES = {"ring": ring_s, "tree": tree_s, "all-reduce": faster_s}
"""`Paradigm.collective` -> its seconds."""


@dataclass(frozen=True, slots=True)
class WorkerLink:
    """What is between a worker and all others, one way."""

    latency_s: float
    bandwidth_bytes_per_s: float


class AllReduce:
    """The exchange of the gradients of one update among the workers that computed them."""

    def __init__(
        self, collective: str, experiment: Experiment, groups: Mapping[str, WorkerGroup], size: int
    ) -> None:
        """
        Args:
            collective: one of `COLLECTIVES`.
            experiment: gives the `network`.
            groups: worker slot -> group.
            size: the bytes of a gradient, before `network` changes what is sent of it.
        """
        self._seconds = COLLECTIVES[collective]
        self._size = size
        links = {group.name: (experiment.network.link, group.link) for group in groups.values()}
        ways = {
            name: WorkerLink(
                sum(link.latency_s for link in both),
                min(link.bandwidth_bytes_per_s or inf for link in both),
            )
            for name, both in links.items()
        }
        self._links = {slot: ways[group.name] for slot, group in groups.items()}
        # What a checkpoint has kept of a round comes from the server's file: whose it was is not
        # known here. All members are in a round, so the slowest way decides with or without it.
        self._links[SERVER] = WorkerLink(
            max(way.latency_s for way in ways.values()),
            min(way.bandwidth_bytes_per_s for way in ways.values()),
        )

    def seconds(self, gradients: Sequence[Any]) -> float:
        """Return how long it takes.

        Args:
            gradients: each with the `site` where it was computed, or the server's if a checkpoint
                kept it, and what faults do to its way.
        """
        ends = [(self._links[each.site], each.fault) for each in gradients]
        latency_s = max(link.latency_s + fault.latency_s for link, fault in ends)
        bandwidth = min(link.bandwidth_bytes_per_s for link, _ in ends)
        return self._seconds(len(ends), self._size, latency_s, bandwidth)
