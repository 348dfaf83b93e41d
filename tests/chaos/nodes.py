"""A private cluster of several nodes on this machine, each of which can be lost and comes back.

Ray's own `cluster_utils` starts every node as processes of its own: a raylet with its object store,
and the actors below it. To lose a node is to kill all of them at once. The head, which has no CPU
and so holds no actor, stays: without fault tolerance of its own Ray does not survive its loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import ceil
from typing import Any

import psutil
from ray.cluster_utils import Cluster

from raysync.cluster.placement import plan
from raysync.config import Experiment
from tests.chaos.processes import kind_of

NODE_AWAY_S = 5.0
"""How long a lost node stays away."""


@contextmanager
def nodes_for(experiment: Experiment) -> Iterator[Nodes]:
    """Start a cluster with as many nodes as hold the CPUs of the actors."""
    asked = [bundle.resources.get("CPU", 0.0) for bundle in plan(experiment).bundles]
    cpus = max(1, ceil(max(asked)))
    logging.getLogger("ray").setLevel(logging.ERROR)
    head = {"num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = Nodes(cluster, cpus)
        for _ in range(ceil(sum(asked) / cpus - 1e-9)):
            nodes.add()
        yield nodes
    finally:
        cluster.shutdown()


class Nodes:
    """The nodes that can be lost."""

    def __init__(self, cluster: Cluster, cpus: int) -> None:
        self._cluster, self._cpus = cluster, cpus
        self.present: list[Any] = []
        self._back_at: list[float] = []

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def lose(self, node: Any, now_s: float) -> list[str]:
        """Kill all processes of a node; return the kinds of actors that it held."""
        self.present.remove(node)
        self._back_at.append(now_s + NODE_AWAY_S)
        struck: list[psutil.Process] = []
        with suppress(psutil.Error):  # it may be gone by itself
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            struck = [raylet, *raylet.children(recursive=True)]
        held = [kind for process in struck if (kind := kind_of(process))]
        for process in struck:
            with suppress(psutil.Error):
                process.kill()
        self._cluster.remove_node(node, allow_graceful=False)
        return held

    def restart(self, now_s: float) -> None:
        """Start the nodes anew whose time has come."""
        while self._back_at and self._back_at[0] <= now_s:
            self._back_at.pop(0)
            self.add()

    def add(self) -> None:
        self.present.append(self._cluster.add_node(num_cpus=self._cpus))
