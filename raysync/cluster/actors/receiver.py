"""The receiver of a server, which brings gradients to the server's node."""

from __future__ import annotations

from typing import Any

from raysync.cluster.actors.actor_spec import Role


class Receiver:
    """An actor beside a server that imports nothing heavy and computes nothing.

    As it is asynchronous, each call runs as soon as its own argument is there. In a plain actor,
    such as the server, a late argument holds up all later calls (Ray 2.60), so one slow link would
    delay everyone's updates. Nor can the controller wait: while `ray.wait` fetches an object, it
    misses other answers.
    """

    def __init__(self, role: Role) -> None:
        self._role = role

    def __repr__(self) -> str:
        return str(self._role)

    async def receive(self, part: Any) -> None:
        # Ray has brought the argument to this node, where an update will find it.
        ...
