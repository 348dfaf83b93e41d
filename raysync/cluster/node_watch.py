"""What becomes of the nodes that the workers of a run sit on: which are gone, which will be taken
away, and which can take a worker that comes back.

Ray knows: it places what a lost node held on another that has room, and drains a node that its
autoscaler, a cloud or `ray drain-node` is about to take away. It is asked every few seconds in a
thread of its own, so that nothing waits for a head that does not answer.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any, Protocol

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table

from raysync.cluster.clock import repeat
from raysync.core.ids import WorkerId
from raysync.engine.backend import Room

LOOK_EVERY_S = 2.0


@dataclass(frozen=True)
class NodeView:
    """What Ray knew of the nodes at a moment."""

    bundles: Mapping[int, str]
    """Index of a bundle of the placement group -> Ray's id of its node; "": Ray has found none
    yet. Without any, nothing is known."""
    cores: Mapping[str, int]
    """Node that is alive -> how many cores it has."""
    draining: Collection[str] = ()
    """The nodes that will be taken away."""

    def has_left(self, node: str) -> bool:
        """Say whether no worker can start on the node any more."""
        return node not in self.cores or node in self.draining


UNKNOWN = NodeView({}, {})
NO_SERVERS: Mapping[str, Sequence[int]] = {}


class Watch(Protocol):
    """What asks for views: a `NodeWatch`."""

    @property
    def view(self) -> NodeView | None:
        """The latest view; None while it is being asked for."""

    def refresh(self) -> None:
        """Ask for a new view at once: what the latest one says may no longer hold."""


class NodeWatch:
    """It asks Ray about the nodes of a placement group, as long as this process lives."""

    def __init__(self, group: PlacementGroup) -> None:
        self._group = group
        self.view: NodeView | None = None
        """The latest view; None while it is being asked for."""
        self._refreshed, self._lock = 0, Lock()
        self._sooner, self._has_failed = Event(), False
        repeat(self._look, LOOK_EVERY_S, self._sooner)

    def refresh(self) -> None:
        """Ask for a new view at once: what the latest one says may no longer hold."""
        with self._lock:
            self._refreshed += 1
            self.view = None
        self._sooner.set()

    def _look(self) -> None:
        refreshed = self._refreshed
        try:
            view = view_of(self._group)
        except Exception as error:
            view = UNKNOWN
            if not self._has_failed:
                logging.getLogger(__name__).warning("Ray does not tell of its nodes: %s", error)
            self._has_failed = True
        with self._lock:
            if refreshed == self._refreshed:
                self.view = view


def view_of(group: PlacementGroup) -> NodeView:
    """Ask Ray for what it knows now."""
    return NodeView(
        placement_group_table(group)["bundles_to_node_id"],
        {node["NodeID"]: _cores(node) for node in ray.nodes() if node["Alive"]},
        draining_nodes(),
    )


def draining_nodes() -> Collection[str]:
    """Return the nodes that are being drained.

    Ray 2.60 has no public function for it. This one is what Ray Train's own watcher of preemptions
    calls; under a Ray that lacks it no node is known to be drained.
    """
    try:
        return frozenset(ray._private.state.state.get_draining_nodes())
    except AttributeError:
        return ()


def _cores(node: Mapping[str, Any]) -> int:
    """Return how many cores a node has; the one of a private cluster may declare more."""
    declared = max(1, int(node["Resources"].get("CPU", 1)))
    is_here = node["NodeID"] == ray.get_runtime_context().get_node_id()
    return min(declared, os.cpu_count() or 1) if is_here else declared


class WorkerNodes:
    """The nodes of the workers of one run."""

    def __init__(
        self,
        watch: Watch,
        bundles: Mapping[str, int],
        servers: Mapping[str, Sequence[int]] = NO_SERVERS,
    ) -> None:
        """
        Args:
            watch: asks for views of the nodes.
            bundles: slot -> the index of the bundle that its workers sit in.
            servers: id of a server -> the indices of those that its shards sit in, of which the
                first has the controller, too.
        """
        self._watch, self._bundles, self._servers = watch, bundles, servers
        self._starting: dict[str, str] = {}
        """Worker that is starting -> its node."""
        self._reported: set[tuple[str, str | None]] = set()
        """The workers and servers whose nodes are known to be drained, with the node."""
        self._seen: NodeView | None = None

    def room(self, worker: str) -> Room:
        """See `Backend.room`; a node starts no more workers at once than it has cores."""
        view = self._watch.view
        if view is None:
            return "busy"
        node = self._node_of(worker, view)
        if node is None:
            return "free"
        if view.has_left(node):
            return "none"
        starting = sum(where == node for where in self._starting.values())
        return "free" if starting < view.cores[node] else "busy"

    def starts(self, worker: str) -> None:
        """Take in that a worker is being started."""
        view = self._watch.view
        if view is not None and (node := self._node_of(worker, view)) is not None:
            self._starting[worker] = node

    def started(self, worker: str) -> None:
        """Take in that a worker is ready."""
        self._starting.pop(worker, None)

    def lost(self, worker: str) -> None:
        """Take in that a worker is gone, perhaps with its node."""
        self._starting.pop(worker, None)
        self._watch.refresh()

    def report(self, workers: Iterable[str], drained: Callable[[str], None]) -> None:
        """Call `drained` with the servers, and with those of the workers, whose node will be taken
        away, once for each node.
        """
        view = self._watch.view
        if view is None or view is self._seen:
            return
        self._seen = view
        if not view.draining:
            return
        where = [
            (server, view.bundles.get(index))
            for server, indices in self._servers.items()
            for index in indices
        ]
        where += [(worker, self._node_of(worker, view)) for worker in workers]
        for actor, node in where:
            if node in view.draining and (actor, node) not in self._reported:
                self._reported.add((actor, node))
                drained(actor)

    def _node_of(self, worker: str, view: NodeView) -> str | None:
        """Return the node of the worker's bundle, "" if it has none, and None if it is unknown."""
        return view.bundles.get(self._bundles[WorkerId(worker).slot])
