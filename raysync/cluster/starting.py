"""How the actors of a actor group start: on each node no more at once than it has cores.

An actor's process imports torch, which takes a core for seconds. Where many do so at once on few
cores, none is ready before all are, and Ray takes those for dead that do not register within a
minute, and starts others in their place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

import ray

from raysync.cluster.clock import now_s
from raysync.cluster.time_limit import within
from raysync.engine.driver import START_DEADLINE_S

TELL_EVERY_S = 5.0
"""How often the user hears how many are ready."""


class Starting:
    """Starts actors one after the other, each as soon as its node has a core for it."""

    def __init__(
        self,
        cores: Mapping[str, int],
        nodes: list[str],
        workers: int,
        notify: Callable[[str], None],
    ) -> None:
        """
        Args:
            cores: node -> how many it has.
            nodes: of all actors that will be started here.
            workers: how many of them are workers.
            notify: is told now and then how many workers are ready.
        """
        self._cores = cores
        self._workers, self._notify = workers, notify
        self._under_way: dict[Any, tuple[str, bool]] = {}
        """Reference that is ready when the actor is -> its node, and whether it is a worker."""
        self._ready = 0
        self._told_s = now_s()
        most = max(ceil(count / cores[node]) for node, count in Counter(nodes).items())
        self.deadline_s = START_DEADLINE_S * most
        """How long all of them may take to do what one may do within the start deadline: a node's
        take turns."""

    def start(self, node: str, make: Callable[[], Any], *, is_worker: bool = False) -> Any:
        """The actor that `make` asks Ray for, once the node has room for it.

        Raises:
            RayError: one of those before it did not start.
            TimeoutError: nothing comes of those before it, or Ray is stuck.
        """
        while sum(where == node for where, _ in self._under_way.values()) >= self._cores[node]:
            self._await_one()
        actor = within(START_DEADLINE_S, make)
        self._under_way[actor.__ray_ready__.remote()] = node, is_worker
        return actor

    def finish(self) -> None:
        """Wait until all are ready; raises what `start` does."""
        while self._under_way:
            self._await_one()

    def _await_one(self) -> None:
        under_way = list(self._under_way)
        [ready], _ = within(START_DEADLINE_S, lambda: ray.wait(under_way, num_returns=1))
        _, is_worker = self._under_way.pop(ready)
        within(START_DEADLINE_S, lambda: ray.get(ready))
        self._ready += is_worker
        if now_s() >= self._told_s + TELL_EVERY_S:
            self._told_s = now_s()
            self._notify(f"{self._ready} of {self._workers} workers are ready.")
