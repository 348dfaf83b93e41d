"""The server shards as the controller sees them: one server, whose vectors come in as many parts as there are shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray

from raysync.cluster.messages import ApplyPlan

Parts = tuple[Any, ...]
"""References to the parts of one vector, a shard each."""


class Shards:
    """Sends each call to every shard; each works its calls off in their order, so together they stay one model."""

    def __init__(self, servers: Sequence[Any], clips: bool) -> None:
        """
        Args:
            servers: handles of the shards' actors, in their order.
            clips: whether updates look at the norm of the whole gradient, which the shards then tell each other.
        """
        self.count = len(servers)
        self._servers = servers
        self._tell_norms = clips and len(servers) > 1

    def fetch(self, gradient: Parts) -> list[Any]:
        """Bring each part of a gradient to its shard; returns the references that are there once it has come.

        There is nothing to wait for if the first part is here: it comes from a worker on this node, which is
        lost only together with this process, or it is so small that Ray has sent it along. The first shard
        sits on this node, too, where Ray fetches what is waited for here.
        """
        first, *others = gradient
        if ray.wait([first], timeout=0)[0]:
            return []
        return [first, *(server.receive.remote(part)
                         for server, part in zip(self._servers[1:], others, strict=True))]

    def apply(self, plan: ApplyPlan, vectors: Sequence[Parts]) -> Parts:
        """One update, of gradients and what goes behind them, without publishing it; returns the acknowledgements."""
        fields, arrived = self._arriving(plan, vectors)
        return tuple(server.apply.remote(fields, *parts) for server, parts in zip(self._servers, arrived, strict=True))

    def apply_and_publish(self, plan: ApplyPlan, vectors: Sequence[Parts]) -> Parts:
        """One update; the weights it makes, which are there when it is done."""
        fields, arrived = self._arriving(plan, vectors)
        return tuple(server.apply_and_publish.remote(fields, *parts)
                     for server, parts in zip(self._servers, arrived, strict=True))

    def publish(self, version: int) -> tuple[Parts, Parts]:
        """The weights as they are at that version, and the acknowledgements."""
        weights, acks = zip(*(server.publish.remote(version) for server in self._servers), strict=True)
        return weights, acks

    def forget(self, worker: str) -> None:
        """A worker has left."""
        for server in self._servers:
            server.forget.remote(worker)

    def _arriving(self, plan: ApplyPlan, vectors: Sequence[Parts]) -> tuple[list[Any], list[Parts]]:
        """What each shard is sent for an update: its parts of the vectors, or all norms once it has those."""
        parts = list(zip(*vectors, strict=True))
        if not self._tell_norms:
            return plan.fields(), parts
        norms = tuple(server.combine.remote(plan.fields(), *its) for server, its in zip(self._servers, parts, strict=True))
        return replace(plan, combined=True).fields(), [norms] * len(self._servers)
