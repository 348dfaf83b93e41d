"""The receiver of a server: it brings gradients to the server's node.

A gradient has arrived when its bytes are on the node of its server. Ray brings to a node what a
call there needs. The server itself cannot be called for that: a call whose argument is late holds
up every later call of a plain actor (Ray 2.60), and so one slow link would hold up the updates of
all. Nor can the controller wait for it, even on that node: while `ray.wait` fetches an object, it
does not notice the answers of other workers that come meanwhile. An asynchronous actor takes each
call as soon as its own argument is there.
"""

from __future__ import annotations

from typing import Any

from raysync.cluster.actors.actor_spec import Role


class Receiver:
    """It sits beside a server, imports nothing heavy and computes nothing."""

    def __init__(self, role: Role) -> None:
        self._role = role

    def __repr__(self) -> str:
        return str(self._role)

    async def receive(self, part: Any) -> None:
        """Do nothing: Ray has brought the argument to this node, where an update will find it."""
