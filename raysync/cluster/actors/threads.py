"""How many threads torch has in an actor: as asked for, or a fair share of its node's cores.

By default they spin while they wait for one another, so there are no more of them than cores that
are an actor's own. Those of a server block (`fork_server.BLOCKING`), and of these there may be one
for each core: at a barrier all the workers wait meanwhile.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

LEAST = 2**20
"""The least elements that are worth a thread of their own: waking one takes as long as half as
many."""


class Threads(NamedTuple):
    """The threads of an actor, as far as they are known before it sits on its node."""

    asked: int
    """The least."""
    cores: int = 0
    """The cores of its node, as Ray counts them; 0: it has what was asked for."""
    sharers: int = 0
    """The bundles of the run that share them; 0: none does."""
    servers: int = 0
    """The servers of the run that share them for updates; 0: none does."""

    def here(self) -> int:
        """Return the threads of torch in an actor that calls this."""
        return max(1, self.asked, self._share(self.sharers))

    def of_update(self, gradients: int, size: int) -> int:
        """Return the threads of torch for an update in a server that calls this.

        The workers of several gradients wait while these are applied; that of a single one waits
        alone, and the others compute on.

        Args:
            gradients: that it takes.
            size: the length of its vectors.
        """
        most = max(self.here(), self._share(self.servers)) if gradients > 1 else self.here()
        return max(1, min(most, size // LEAST))

    def _share(self, sharers: int) -> int:
        """Return a share of the cores.

        A node may declare more cores to Ray than it has, and a container fewer than its machine
        has: so the share is one of the fewer.
        """
        if not sharers:
            return 0
        there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return min(self.cores, there or 1) // sharers


def use_threads(threads: Threads) -> None:
    """Give torch its threads in this process."""
    torch.set_num_threads(threads.here())


def fair_threads(
    asked: Sequence[int], nodes: Sequence[str], cores: Mapping[str, int]
) -> tuple[Threads, ...]:
    """Return the threads of the actors in each bundle: as many as were asked for, or a fair share
    of the cores of its node if that is more. Servers and workers compute in turns, so most of the
    time cores are free that others have reserved.

    Args:
        asked: those of each bundle, at least.
        nodes: the node of each.
        cores: node -> how many it has, as Ray counts them.
    """
    there = Counter(nodes)
    return tuple(
        Threads(least, cores[node], there[node]) for least, node in zip(asked, nodes, strict=True)
    )


def of_servers(
    threads: Sequence[Threads], nodes: Sequence[str], cores: Mapping[str, int]
) -> tuple[Threads, ...]:
    """Return the threads of servers, which share the cores of their nodes for updates.

    Args:
        threads: those of each without that.
        nodes: the node of each.
        cores: node -> how many it has, as Ray counts them.
    """
    there = Counter(nodes)
    return tuple(
        each._replace(cores=cores[node], servers=there[node])
        for each, node in zip(threads, nodes, strict=True)
    )
