"""One parameter server, whose vectors come in as many parts as it has shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

INLINE_BYTES = 100 * 1024
"""The size up to which Ray keeps a result out of its object store."""
OVERHEAD_BYTES = 4096
"""More than what pickling adds to the bytes of a vector."""

Parts = tuple[Any, ...]
"""References to the parts of one vector, one a shard."""


class Shards:
    """It sends each call to every shard. Each works its calls off in their order, so together they
    stay one model.
    """

    def __init__(
        self,
        servers: Sequence[Any],
        nodes: Sequence[str],
        receivers: Sequence[Any],
        *,
        clips: bool,
        vector_bytes: int,
    ) -> None:
        """
        Args:
            servers: handles of the shards' actors, in their order.
            nodes: Ray's ids of their nodes.
            receivers: handle of the receiver beside each shard; None: it sits on this node.
            clips: whether updates look at the norm of the whole gradient, which the shards then
                tell each other.
            vector_bytes: the size of a gradient; Ray sends small parts along with its messages.
        """
        self.count = len(servers)
        self._servers = servers
        self._receivers = list(zip(nodes, receivers, strict=True))
        self._is_inline = vector_bytes / self.count + OVERHEAD_BYTES <= INLINE_BYTES
        self._tell_norms = clips and len(servers) > 1

    def fetch(self, gradient: Parts, node: str | None) -> list[Any]:
        """Bring each part of a gradient to the node of its shard.

        Args:
            gradient: its parts.
            node: Ray's id of the node of the worker that computed it; None if it is unknown.

        Returns:
            The references that are there once it has come; none if nothing has to be brought: the
            parts are already there, or travel with the calls that need them. What is waited for
            here comes to this node; to another node its receiver brings it.
        """
        if self._is_inline:
            return []
        return [
            part if receiver is None else receiver.receive.remote(part)
            for part, (home, receiver) in zip(gradient, self._receivers, strict=True)
            if home != node
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
