"""The gradients and weights of a run in shared memory: who writes into which slots.

Every process that writes has slots of its own (`shared_memory`): a worker for its gradients, as
many as are on their way, buffered, or in the log of the server; a shard of the server for its part
of the weights, one for each version that something still needs. What comes back in the place of a
process that is gone gets others.

The first time that a page of a slot is written, the system finds and clears memory for it, which
takes a core several times as long as writing it. So actors keep their slots from run to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raysync.cluster.transports.shared_memory import Lease, Slots
from raysync.training.server.vector_parts import spans

ITEM_BYTES = 4
"""The size of a float32."""


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """What travels in shared memory in a run."""

    node: str
    """Ray's id of the node of the controller and of all servers. The gradients of the workers there
    are in shared memory, and those of others are object references."""
    shares_weights: bool
    """Whether the weights are, too: if all who read them are there."""


class KeptSlots:
    """The slots of actors that have one run after another."""

    def __init__(self) -> None:
        self._slots: dict[tuple[str, int], Slots] = {}
        """(Ray's id of the actor, size of a vector) -> the slots of its latest run."""

    @property
    def held_bytes(self) -> int:
        """The size of all slots."""
        return sum(segment.size for each in self._slots.values() for segment in each.segments)

    def begin(self, sizes: Mapping[str, int]) -> dict[str, Slots]:
        """Return the slots for a run, all of them free; what is not needed again is forgotten.

        Args:
            sizes: Ray's id of each actor that begins it -> the size of its vectors, in bytes.
        """
        kept = {key: each for key, each in self._slots.items() if not each.is_closed}
        self._slots = {
            key: kept[key].renewed() if key in kept else Slots(key[1]) for key in sizes.items()
        }
        return {actor: each for (actor, _), each in self._slots.items()}


class SharedVectors:
    """The slots of a run."""

    def __init__(
        self,
        plan: SharedPlan,
        vector_bytes: int,
        push_bytes: int,
        workers: Mapping[str, str],
        servers: Sequence[str],
        kept: KeptSlots,
    ) -> None:
        """
        Args:
            plan: says what is shared.
            vector_bytes: the size of the weights.
            push_bytes: the size of a gradient.
            workers: worker -> Ray's id of its actor, of those that begin the run.
            servers: Ray's id of each shard, which has a part of the weights.
            kept: the slots that these actors may have had in the run before.
        """
        self.plan = plan
        self._push_bytes = push_bytes
        parts = spans(vector_bytes // ITEM_BYTES, len(servers))
        self._part_bytes = [ITEM_BYTES * (part.stop - part.start) for part in parts]
        weights = dict(zip(servers, self._part_bytes, strict=True)) if plan.shares_weights else {}
        slots = kept.begin(dict.fromkeys(workers.values(), push_bytes) | weights)
        self._gradients = {worker: slots[actor] for worker, actor in workers.items()}
        """Worker -> its slots."""
        self._weights = [slots[actor] for actor in weights]

    @property
    def uses_pipes(self) -> bool:
        """Whether hot calls travel over pipes: where all vectors are shared, of one server."""
        return len(self._weights) == 1

    def gradient(self, worker: str, sites: Mapping[str, str]) -> Lease | None:
        """Return a slot for the next gradient of a worker; None: it sits on another node.

        Args:
            worker: its id.
            sites: worker -> Ray's id of its node.
        """
        if sites.get(worker) != self.plan.node:
            return None
        if worker not in self._gradients:
            self._gradients[worker] = Slots(self._push_bytes)
        return self._gradients[worker].take()

    def weights(self) -> tuple[Lease, ...]:
        """Return a slot for each part of the next weights that are published; none if they are not
        shared.
        """
        return tuple(slots.take() for slots in self._weights)

    def forget(self, worker: str) -> None:
        """Forget a worker that is gone; its gradients stay as long as they are held."""
        slots = self._gradients.pop(worker, None)
        if slots is not None:
            slots.close()

    def restart(self) -> None:
        """Take in that servers are started anew; weights stay as long as they are held."""
        for slots in self._weights:
            slots.close()
        if self._weights:
            self._weights = [Slots(size) for size in self._part_bytes]
