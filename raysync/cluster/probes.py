"""Ask a node of the cluster how busy it is."""

from __future__ import annotations

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysync.cluster.clock import ANSWER_S, within

LOOK_S = 1.0
"""How long a node is watched."""


def busy_cores(node: str) -> tuple[float, int]:
    """Return the cores that are busy on a node, by all that runs there, and those that it has.

    Args:
        node: Ray's id of it.

    Raises:
        TimeoutError: the node does not answer.
    """
    place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    look = ray.remote(_busy_cores).options(num_cpus=0, scheduling_strategy=place)
    found: tuple[float, int] = within(ANSWER_S, lambda: ray.get(look.remote()))
    return found


def _busy_cores() -> tuple[float, int]:
    cores = psutil.cpu_count() or 1
    return psutil.cpu_percent(LOOK_S) / 100 * cores, cores
