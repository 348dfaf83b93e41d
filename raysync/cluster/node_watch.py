"""The nodes of a run's workers: lost, draining, or free for a restart."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Event, Lock
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table

from raysync.cluster.clock import now_s, repeat
from raysync.cluster.ray_private.names import draining_nodes
from raysync.core.ids import WorkerId
from raysync.engine.backend import Availability

POLL_EVERY_S = 2.0
# How long Ray may take to reschedule a lost bundle, if there is space. Until then nobody knows
# whether there is.
PLACED_S = 5.0


@dataclass(frozen=True)
class NodeView:
    """Ray's knowledge of the nodes at one time."""

    # Index of a bundle of the placement group -> Ray's id of its node; "": Ray has found none yet.
    # Empty: nothing is known.
    bundles: Mapping[int, str]
    cores: Mapping[str, int]  # live node -> how many cores it has
    draining: Collection[str] = ()  # nodes that will be removed
    # node -> its address, also of lost ones
    addresses: Mapping[str, str] = field(default_factory=dict)
    placing: Collection[int] = ()  # bundles without a node for which Ray may still find one

    def has_left(self, node: str) -> bool:
        """Whether no worker can start on the node any more."""
        return node not in self.cores or node in self.draining

    @property
    def without_node(self) -> Collection[int]:
        """The bundles of lost nodes that Ray has not rescheduled."""
        return [index for index, node in self.bundles.items() if node not in self.cores]


UNKNOWN = NodeView({}, {})
NO_SERVERS: Mapping[str, Sequence[int]] = {}


class NodeWatch:
    """Polls Ray about the nodes of a placement group, as long as this process lives.

    Ray reschedules what a lost node held, and drains a node that its autoscaler, a cloud or `ray
    drain-node` is about to remove. A thread polls, so nothing waits for a head that does not
    answer.
    """

    def __init__(self, group: PlacementGroup) -> None:
        self._group = group
        self.view: NodeView | None = None  # the latest; None while a new one is awaited
        # bundle without a node -> when that was first seen
        self._without_since_s: dict[int, float] = {}
        # how often a new view was requested: a poll that began before the latest request is stale
        self._refreshed, self._lock = 0, Lock()
        self._wake, self._has_failed = Event(), False
        repeat(self._poll, POLL_EVERY_S, self._wake)

    def refresh(self) -> None:
        """Request a new view at once: the latest may be stale."""
        with self._lock:
            self._refreshed += 1
            self.view = None
        self._wake.set()

    def _poll(self) -> None:
        refreshed = self._refreshed
        try:
            view = view_of(self._group)
        except Exception as error:
            view = UNKNOWN
            if not self._has_failed:
                logging.getLogger(__name__).warning(
                    "Ray does not report the state of its nodes: %s", error
                )
            self._has_failed = True
        now, since = now_s(), self._without_since_s
        self._without_since_s = {each: since.get(each, now) for each in view.without_node}
        placing = [each for each, at in self._without_since_s.items() if now < at + PLACED_S]
        with self._lock:
            if refreshed == self._refreshed:
                self.view = replace(view, placing=placing) if placing else view


def view_of(group: PlacementGroup) -> NodeView:
    bundles, nodes = placement_group_table(group)["bundles_to_node_id"], ray.nodes()
    return NodeView(
        bundles,
        {node["NodeID"]: _cores(node) for node in nodes if node["Alive"]},
        draining_nodes(),
        {node["NodeID"]: node["NodeManagerAddress"] for node in nodes},
    )


def _cores(node: Mapping[str, Any]) -> int:
    # a private cluster's node may declare more cores than it has
    declared = max(1, int(node["Resources"].get("CPU", 1)))
    is_here = node["NodeID"] == ray.get_runtime_context().get_node_id()
    return min(declared, os.cpu_count() or 1) if is_here else declared


class WorkerNodes:
    """The nodes of the workers of one run."""

    def __init__(
        self,
        watch: NodeWatch,
        bundles: Mapping[str, int],  # slot -> the index of its workers' bundle
        # id of a server -> the indices of its shards' bundles
        servers: Mapping[str, Sequence[int]] = NO_SERVERS,
    ) -> None:
        self._watch, self._bundles, self._servers = watch, bundles, servers
        self._starting: dict[str, str] = {}  # starting worker -> its node
        # workers and servers whose node drains, with the node
        self._reported: set[tuple[str, str | None]] = set()
        # node -> the servers, and the slots of the workers, that have been there
        self._hosted: dict[str, dict[str, None]] = {}
        self._seen: NodeView | None = None

    def availability(self, worker: str) -> Availability:
        # a node starts no more workers at once than it has cores
        view = self._watch.view
        if view is None or self._bundles[WorkerId(worker).slot] in view.placing:
            return "busy"
        node = self._node_of(worker, view)
        if node is None:
            return "free"
        if view.has_left(node):
            return "none"
        starting = sum(where == node for where in self._starting.values())
        return "free" if starting < view.cores[node] else "busy"

    def starting(self, worker: str) -> None:
        view = self._watch.view
        if view is not None and (node := self._node_of(worker, view)) is not None:
            self._starting[worker] = node

    def started(self, worker: str) -> None:
        self._starting.pop(worker, None)

    def lost(self, worker: str) -> None:
        self._starting.pop(worker, None)
        self._watch.refresh()

    def report(
        self,
        workers: Iterable[str],
        drained: Callable[[str], None],
        lost: Callable[[str, Sequence[str]], None],
    ) -> None:
        """Report drained and lost nodes: see `Backend.watch_nodes`."""
        view = self._watch.view
        if view is None or view is self._seen:
            return
        self._seen = view
        # each actor with what is said of it once its node is lost, and its node
        where = [
            (server, server, view.bundles.get(index))
            for server, indices in self._servers.items()
            for index in indices
        ]
        where += [
            (worker, str(WorkerId(worker).slot), self._node_of(worker, view)) for worker in workers
        ]
        self._report_lost(view, lost)
        for actor, place, node in where:
            if node is not None and node in view.cores:
                self._hosted.setdefault(node, {})[place] = None
            if node in view.draining and (actor, node) not in self._reported:
                self._reported.add((actor, node))
                drained(actor)

    def _report_lost(self, view: NodeView, lost: Callable[[str, Sequence[str]], None]) -> None:
        if not view.cores:
            return  # nothing is known
        for node in [each for each in self._hosted if each not in view.cores]:
            lost(view.addresses.get(node, node), list(self._hosted.pop(node)))

    def _node_of(self, worker: str, view: NodeView) -> str | None:
        """Return the node of the worker's bundle, "" if it has none, and None if it is unknown."""
        return view.bundles.get(self._bundles[WorkerId(worker).slot])
