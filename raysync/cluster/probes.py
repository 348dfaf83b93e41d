from __future__ import annotations

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysync.cluster.clock import ANSWER_S, within

OBSERVED_S = 1.0  # how long a node is observed


def busy_cores(node: str) -> tuple[float, int]:
    """Measure how many of a node's cores are busy; return that number, and that of all.

    Raises:
        TimeoutError: the node does not answer.
    """
    place = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    probe = ray.remote(_busy_cores).options(num_cpus=0, scheduling_strategy=place)
    busy_and_all: tuple[float, int] = within(ANSWER_S, lambda: ray.get(probe.remote()))
    return busy_and_all


def _busy_cores() -> tuple[float, int]:
    cores = psutil.cpu_count() or 1
    return psutil.cpu_percent(OBSERVED_S) / 100 * cores, cores
