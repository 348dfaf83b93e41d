"""The seconds of an all-reduce, after which each worker of a round has the sum of all gradients.

Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005), sections 4.2 and 4.5, without the seconds of adding, which are in the update.
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
    """Return the seconds of a ring: reduce-scatter, then all-gather (section 4.5).

    In each of 2 (n - 1) steps every worker sends 1/n of the vector to the next:
    2 (n - 1) / n * bytes / bandwidth + 2 (n - 1) * latency

    Args:
        workers: at least one.
        size_bytes: the size of a worker's vector.
        latency_s: of the slowest link, one way.
        bandwidth_bytes_per_s: of the slowest link; inf: without limit.
    """
    steps = 2 * (workers - 1)
    return steps / workers * size_bytes / bandwidth_bytes_per_s + steps * latency_s


def tree_s(
    workers: int, size_bytes: float, latency_s: float, bandwidth_bytes_per_s: float
) -> float:
    """Return the seconds of a binomial tree (section 4.2): reduce to the root, then broadcast.

    On each of 2 * ceil(log2 n) levels the whole vector travels.
    """
    return 2 * ceil(log2(workers)) * (latency_s + size_bytes / bandwidth_bytes_per_s)


def faster_s(
    workers: int, size_bytes: float, latency_s: float, bandwidth_bytes_per_s: float
) -> float:
    # A ring is best for long vectors, a tree for short ones: libraries choose by size.
    link = latency_s, bandwidth_bytes_per_s
    return min(ring_s(workers, size_bytes, *link), tree_s(workers, size_bytes, *link))


# `Paradigm.collective` -> its seconds
COLLECTIVES = {"ring": ring_s, "tree": tree_s, "all-reduce": faster_s}


@dataclass(frozen=True, slots=True)
class WorkerLink:
    """The link between a worker and all others, one way."""

    latency_s: float
    bandwidth_bytes_per_s: float


class AllReduce:
    """The exchange of an update's gradients among the workers that computed them.

    Every step waits for the slowest link of the round. It begins once the last gradient is
    computed, without overlap with the backward pass, as torch's DistributedDataParallel with one
    bucket.
    """

    def __init__(
        self,
        collective: str,
        experiment: Experiment,
        groups: Mapping[str, WorkerGroup],
        size_bytes: int,  # of a whole gradient
    ) -> None:
        self._collective_s = COLLECTIVES[collective]
        self._size_bytes = size_bytes
        links = {group.name: (experiment.network.link, group.link) for group in groups.values()}
        worker_links = {
            name: WorkerLink(
                sum(link.latency_s for link in both),
                min(link.bandwidth_bytes_per_s or inf for link in both),
            )
            for name, both in links.items()
        }
        self._links = {slot: worker_links[group.name] for slot, group in groups.items()}
        # A checkpoint keeps gradients of an open round in the server's file, without the names of
        # their workers. All members are in a round, so the slowest link decides in any case.
        self._links[SERVER] = WorkerLink(
            max(link.latency_s for link in worker_links.values()),
            min(link.bandwidth_bytes_per_s for link in worker_links.values()),
        )

    def seconds(self, gradients: Sequence[Any]) -> float:
        """Return the seconds for gradients, each with the `site` of its worker, and its fault."""
        ends = [(self._links[each.site], each.fault) for each in gradients]
        latency_s = max(link.latency_s + fault.latency_s for link, fault in ends)
        bandwidth = min(link.bandwidth_bytes_per_s for link, _ in ends)
        return self._collective_s(len(ends), self._size_bytes, latency_s, bandwidth)
