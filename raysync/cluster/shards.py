"""One parameter server, whose vectors come in as many parts as it has shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray

Parts = tuple[Any, ...]
"""References to the parts of one vector, one a shard."""


class Shards:
    """It sends each call to every shard. Each works its calls off in their order, so together they
    stay one model.
    """

    def __init__(self, servers: Sequence[Any], clips: bool) -> None:
        """
        Args:
            servers: handles of the shards' actors, in their order.
            clips: whether updates look at the norm of the whole gradient, which the shards then
                tell each other.
        """
        self.count = len(servers)
        self._servers = servers
        self._tell_norms = clips and len(servers) > 1

    def fetch(self, gradient: Parts) -> list[Any]:
        """Bring each part of a gradient to its shard; returns the references that are there once it
        has come.

        There is nothing to wait for if the first part is here: it comes from a worker on this node,
        which is lost only together with this process, or it is so small that Ray has sent it along.
        The first shard sits on this node, too, where Ray fetches what is waited for here.
        """
        first, *others = gradient
        if ray.wait([first], timeout=0)[0]:
            return []
        return [
            first,
            *(
                server.receive.remote(part)
                for server, part in zip(self._servers[1:], others, strict=True)
            ),
        ]

    def call(self, method: str, fields: list[Any], vectors: Sequence[Parts]) -> tuple[Parts, ...]:
        """Call a method of every shard with its parts of the vectors.

        Returns:
            The references that are there when it is done, and the parts of the weights that it
            leaves behind, if any.
        """
        parts = list(zip(*vectors, strict=True)) or [()] * self.count
        if self._tell_norms and vectors:
            fields, parts = self._with_norms(fields, parts)
        returned = [
            getattr(server, method).remote(fields, *its)
            for server, its in zip(self._servers, parts, strict=True)
        ]
        match method:
            case "publish":
                weights, acks = zip(*returned, strict=True)
                return acks, weights
            case "apply_and_publish" | "saved" | "statistics":
                return tuple(returned), tuple(returned)
        return (tuple(returned),)

    def _with_norms(
        self, fields: list[Any], parts: Sequence[Parts]
    ) -> tuple[list[Any], list[Parts]]:
        """Let each shard combine its gradients; returns what the shards are sent for the update.

        That is the norms of all shards in place of the gradients.
        """
        norms = tuple(
            server.combine.remote(fields, *its)
            for server, its in zip(self._servers, parts, strict=True)
        )
        *most, _ = fields
        return [*most, True], [norms] * self.count
