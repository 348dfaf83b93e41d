from __future__ import annotations

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysync.cluster.clock import ANSWER_S, within

LOOK_S = 1.0  # how long a node is observed


def busy_cores(node: str) -> tuple[float, int]:
    """Measure how many of a node's cores are busy; return that, and all.

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
