"""The number of torch threads in an actor."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

# the least elements worth a thread: waking one takes as long as computing half as many
LEAST_ELEMENTS = 2**20


class Threads(NamedTuple):
    """The threads of an actor, as far as they are known before its placement.

    Threads spin while they wait for one another, so an actor has at most as many as it has cores. A
    server's threads block (`fork_server.BLOCKING`), so it may use its whole node while all workers
    wait at a barrier.
    """

    min_threads: int
    cores: int = 0  # of its node, as Ray counts them; 0: no more than `min_threads`
    sharers: int = 0  # bundles of the run that share the cores; 0: none
    servers: int = 0  # servers of the run that share the cores for updates; 0: none

    def base_count(self) -> int:
        """Return the torch threads of the calling actor."""
        return max(1, self.min_threads, self._share(self.sharers))

    def update_count(self, gradients: int, size: int) -> int:
        """Return the calling server's torch threads for an update of vectors of `size` numbers."""
        # All workers of several gradients wait for the update; with one gradient only its worker
        # does, and the others need the cores.
        base = self.base_count()
        most = max(base, self._share(self.servers)) if gradients > 1 else base
        return max(1, min(most, size // LEAST_ELEMENTS))

    def _share(self, sharers: int) -> int:
        # A node may declare more cores to Ray than it has, and a container has fewer than its
        # machine: the share is of the smaller number.
        if not sharers:
            return 0
        limit = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return min(self.cores, limit or 1) // sharers


def use_threads(threads: Threads) -> None:
    torch.set_num_threads(threads.base_count())


def fair_threads(
    min_threads: Sequence[int], nodes: Sequence[str], cores: Mapping[str, int]
) -> tuple[Threads, ...]:
    """Give each bundle its minimum, or a fair share of its node's cores if that is more.

    Servers and workers compute in turns, so most of the time reserved cores are idle.
    """
    sharers = Counter(nodes)
    return tuple(
        Threads(least, cores[node], sharers[node])
        for least, node in zip(min_threads, nodes, strict=True)
    )


def with_shared_cores(
    threads: Sequence[Threads], nodes: Sequence[str], cores: Mapping[str, int]
) -> tuple[Threads, ...]:
    """Let servers share the cores of their nodes for updates."""
    sharers = Counter(nodes)
    return tuple(
        each._replace(cores=cores[node], servers=sharers[node])
        for each, node in zip(threads, nodes, strict=True)
    )
