"""The receiver of a server, which brings gradients to the server's node.

Ray brings the arguments of a call to the callee's node. The server itself cannot be called for
that: a late argument holds up all later calls of a plain actor (Ray 2.60), so one slow link would
delay everyone's updates. Nor can the controller wait, even on that node: while `ray.wait` fetches
an object, it misses other answers. An asynchronous actor runs each call as soon as its own argument
is there.
"""

from __future__ import annotations

from typing import Any

from raysync.cluster.actors.actor_spec import Role


class Receiver:
    """An actor beside a server that imports nothing heavy and computes nothing."""

    def __init__(self, role: Role) -> None:
        self._role = role

    def __repr__(self) -> str:
        return str(self._role)

    async def receive(self, part: Any) -> None:
        # Ray has brought the argument to this node, where an update will find it.
        ...
