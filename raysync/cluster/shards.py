"""One parameter server, whose vectors are split into a part for each shard."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import ray
from msgspec.structs import replace

from raysync.cluster.ray_private.names import actor_id
from raysync.cluster.transports.transport import INLINE_BYTES, Remote
from raysync.engine.messages import ApplyCall, CombineCall, Message, encode, method_of

if TYPE_CHECKING:
    from raysync.cluster.actors.actor_spec import ActorSpecs

OVERHEAD_BYTES = 4096  # an upper bound of what pickling adds to the bytes of a vector

Parts = tuple[Any, ...]  # references to the parts of one vector, one a shard


class RunningActor:
    """An actor's handle, and Ray's methods for its calls, which take long to make."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self._methods: dict[tuple[str, int], Callable[..., Any]] = {}

    def method(self, message: Message, parts: int) -> Callable[..., Any]:
        """Return Ray's method for calls of that type, which leave so many parts of values."""
        key = method_of(message), parts
        if key not in self._methods:
            name = f"{message.row.to.capitalize()}.{key[0]}"  # on Ray's dashboard
            self._methods[key] = self.handle.call.options(num_returns=parts + 1, name=name).remote
        return self._methods[key]


class Shards:
    """The shards of one server; each executes all calls in order, so they stay one model."""

    def __init__(
        self,
        servers: Sequence[Any],  # handles of the shards' actors
        kinds: Sequence[str],  # server-0, server-1
        nodes: Sequence[str],  # Ray's ids of their nodes
        receivers: Sequence[Any],  # one beside each shard; None: all workers are on its node
        *,
        # whether updates use the norm of the whole gradient, which the shards then exchange
        clips: bool,
        push_bytes: int,  # of a gradient; Ray sends small parts inside its messages
    ) -> None:
        self.count = len(servers)
        self._servers, self._kinds = [RunningActor(server) for server in servers], kinds
        self._lives = [1] * len(servers)
        self._restarted: Sequence[int] = ()  # the indices of the shards restarted last
        self._receivers = list(zip(nodes, receivers, strict=True))
        self._is_inline = push_bytes / self.count + OVERHEAD_BYTES <= INLINE_BYTES
        self._exchanges_norms = clips and len(servers) > 1

    @property
    def first(self) -> RunningActor:
        return self._servers[0]

    def call(
        self,
        message: Message,
        vectors: Sequence[Parts],
        into: Sequence[Remote] = (),
        *,
        again: bool = False,
    ) -> list[Parts]:
        """Call every shard with its parts of the vectors, and perhaps its slot in shared memory.

        Args:
            again: call only the shards restarted last.

        Returns:
            The references that are ready when it is done, and the parts of each value.
        """
        parts = list(zip(*vectors, strict=True)) or [()] * self.count
        if self._exchanges_norms and isinstance(message, ApplyCall):
            message, parts = self._with_norms(message, parts)
        data, count = encode(message), message.value_count
        options = [{"into": handle} for handle in into] or [{}] * self.count
        returned = [
            self._servers[index].method(message, count)(data, *parts[index], **options[index])
            for index in (self._restarted if again else range(self.count))
        ]
        # The driver waits for small reports: a value stays where it is until it is needed.
        *values, report = zip(*returned, strict=True) if count else [tuple(returned)]
        return [report, *values]

    def _with_norms(
        self, message: ApplyCall, parts: Sequence[Parts]
    ) -> tuple[ApplyCall, list[Parts]]:
        """Let each shard combine its gradients; return the update with all norms as its inputs."""
        assert message.plan is not None, "an update without its details"
        combine = CombineCall(message.plan)
        data = encode(combine)
        norms = tuple(
            server.method(combine, 1)(data, *gradients)[0]
            for server, gradients in zip(self._servers, parts, strict=True)
        )
        return replace(message, plan=replace(message.plan, combined=True)), [norms] * self.count

    def fetch(self, gradient: Parts, node: str | None) -> list[Any]:
        """Bring each part of a gradient from a worker's node, if known, to the node of its shard.

        Returns:
            The references to wait for; none if the parts are there, or travel inside the calls.
        """
        if self._is_inline:
            return []
        return [
            receiver.receive.remote(part)
            for part, (home, receiver) in zip(gradient, self._receivers, strict=True)
            if receiver is not None and home != node
        ]

    def restart(
        self, dead: Collection[str], base: Parts | None, spawns: ActorSpecs
    ) -> tuple[list[str], Parts]:
        """Restart dead shards with their parts of a snapshot.

        Args:
            dead: Ray's ids of dead actors; if none is a shard, all shards restart.
            base: the parts of the snapshot; None: their states at the beginning of the run.
            spawns: the source of the new actors.

        Returns:
            Ray's ids of the new actors, and references that are ready when they are.
        """
        indices = range(self.count)
        restarted = [index for index in indices if self._id(index) in dead]
        # All restart if they exchange norms: a shard that waits for a lost norm misses the update.
        self._restarted = list(indices) if self._exchanges_norms or not restarted else restarted
        ready = []
        for index in self._restarted:
            ray.kill(self._servers[index].handle)
            self._lives[index] += 1
            state = () if base is None else (base[index],)
            server, place = spawns.spawn(self._kinds[index], self._lives[index], *state)
            self._servers[index] = RunningActor(server)
            ready.append(place)
        return [self._id(index) for index in self._restarted], tuple(ready)

    def _id(self, index: int) -> str:
        """Return Ray's id of a shard's actor."""
        return actor_id(self._servers[index].handle)

    def patched(self, parts: Parts, new: Parts) -> Parts:
        """Replace the parts of the shards restarted last."""
        patch = dict(zip(self._restarted, new, strict=True))
        return tuple(patch.get(index, part) for index, part in enumerate(parts))
