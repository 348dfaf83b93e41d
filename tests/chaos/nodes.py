"""A private cluster of several nodes on this machine, each of which can be lost and comes back.

Ray's own `cluster_utils` starts every node as processes of its own: a raylet with its object store,
and the actors below it. To lose a node is to kill all of them at once. The head, which has no CPU
and so holds no actor, stays: without fault tolerance of its own Ray does not survive its loss.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from typing import Any

import psutil
from ray.cluster_utils import Cluster

from raysync.cluster.placement import plan
from raysync.config import Experiment
from raysync.errors import ConfigError
from tests.chaos import processes

NODE_AWAY_S = 5.0
"""How long a lost node stays away."""
STORE_BYTES = 150 * 2**20
"""The object store of a node."""
NO_DISK = {"local_fs_capacity_threshold": 0.0}
"""The setting of a Ray for which the disk is always too full for objects."""
RAYLET = "raylet"


@dataclass(slots=True)
class _Node:
    """A node that actors may sit on."""

    started: Any
    """Ray's object for it; None while it is away."""
    back_at: float = 0.0
    """When it comes back, once it is away."""


class Nodes:
    """The cluster, as a context manager."""

    def __init__(self, experiment: Experiment, *, spills: bool = True) -> None:
        """
        Args:
            experiment: says how many CPUs its actors need.
            spills: whether objects that find no room in a store go to the disk.

        Raises:
            ConfigError: its actors need more of a node than CPUs.
        """
        self._cpus, count = nodes_for(experiment)
        logging.getLogger("ray").setLevel(logging.ERROR)
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": STORE_BYTES,
                "include_dashboard": False,
                "_system_config": {} if spills else NO_DISK,
            },
        )
        try:
            self._nodes = [_Node(self._added()) for _ in range(count)]
        except BaseException:
            self._cluster.shutdown()
            raise

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.shutdown()

    @property
    def address(self) -> str:
        """The address of the cluster."""
        return str(self._cluster.address)

    @property
    def ids(self) -> list[str]:
        """Ray's ids of the nodes that are there, with the head."""
        there = [self._cluster.head_node, *(node.started for node in self.present)]
        return [node.node_id for node in there]

    @property
    def present(self) -> Sequence[_Node]:
        """The nodes that are there."""
        return [node for node in self._nodes if node.started is not None]

    def lose(self, node: _Node, now_s: float) -> list[str]:
        """Kill all processes of a node; return the kinds of actors that it held."""
        lost, node.started = node.started, None
        node.back_at = now_s + NODE_AWAY_S
        struck: list[psutil.Process] = []
        with suppress(psutil.Error):  # it may be gone by itself
            raylet = psutil.Process(lost.all_processes[RAYLET][0].process.pid)
            struck = [raylet, *raylet.children(recursive=True)]
        held = processes.kinds_of(struck)
        for process in struck:
            with suppress(psutil.Error):
                process.kill()
        self._cluster.remove_node(lost, allow_graceful=False)
        return held

    def tend(self, now_s: float) -> int:
        """Start the nodes anew whose time has come; return how many."""
        coming = [node for node in self._nodes if node.started is None and node.back_at <= now_s]
        for node in coming:
            node.started = self._added()
        return len(coming)

    def _added(self) -> Any:
        return self._cluster.add_node(num_cpus=self._cpus, object_store_memory=STORE_BYTES)


def nodes_for(experiment: Experiment) -> tuple[int, int]:
    """Return the CPUs of each node, 1 where that will do, and how many nodes hold all actors.

    Raises:
        ConfigError: an actor needs something that no node here has.
    """
    bundles = plan(experiment).bundles
    for bundle in bundles:
        if bundle.labels or any(
            amount for name, amount in bundle.resources.items() if name != "CPU"
        ):
            raise ConfigError(
                f"--faults node, store: {bundle.owner} asks for more than CPUs, and the nodes that"
                " are started for it have CPUs alone."
            )
    asked = sorted((bundle.resources.get("CPU", 0.0) for bundle in bundles), reverse=True)
    cpus = max(1, ceil(asked[0]))
    free: list[float] = []
    for amount in asked:  # first fit, the largest first, as Ray packs them
        for index, left in enumerate(free):
            if left >= amount - 1e-9:
                free[index] -= amount
                break
        else:
            free.append(cpus - amount)
    return cpus, len(free)
