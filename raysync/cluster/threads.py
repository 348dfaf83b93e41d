"""How many threads torch has in an actor: as asked for, or a fair share of its node's cores."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch


class Threads(NamedTuple):
    """The threads of an actor, as far as they are known before it sits on its node."""

    asked: int
    """The least."""
    cores: int = 0
    """The cores of its node, as Ray counts them; 0: it has what was asked for."""
    sharers: int = 1
    """The bundles of the run on that node."""

    def here(self) -> int:
        """Return the threads of an actor that calls this.

        A node may declare more cores to Ray than it has, and a container fewer than its machine
        has: so the share is one of the fewer.
        """
        there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return max(1, self.asked, min(self.cores, there or 1) // self.sharers)


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
