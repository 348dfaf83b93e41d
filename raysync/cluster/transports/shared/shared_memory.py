"""The gradients and weights of a run in shared memory: who writes into which slots.

Every process that writes has slots of its own (`segments`): a worker for its gradients, as
many as are on their way, buffered, or in the log of the server; a shard of the server for its part
of the weights, one for each version that something still needs. What comes back in the place of a
process that is gone gets others.

The first time that a page of a slot is written, the system finds and clears memory for it, which
takes a core several times as long as writing it. So actors keep their slots from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raysync.cluster.transports.object_store import await_references
from raysync.cluster.transports.shared.channels import HOT, Channels, PipedCall
from raysync.cluster.transports.shared.segments import Slots
from raysync.cluster.transports.shared.shared_vector import SharedVector
from raysync.cluster.transports.transport import CallRequest, IssuedCall, Lease, Transport, Writers
from raysync.engine.backend import Failure
from raysync.engine.messages import ApplyCall, Message, PublishCall, StepCall
from raysync.training.server.vector_parts import spans

ITEM_BYTES = 4
"""The size of a float32."""


def slots_of(vector_bytes: int) -> Slots:
    """Return slots for the vectors of one writer."""
    return Slots(vector_bytes, kind=SharedVector)


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
            key: kept[key].renewed() if key in kept else slots_of(key[1]) for key in sizes.items()
        }
        return {actor: each for (actor, _), each in self._slots.items()}


class SharedMemory:
    """The vectors of a run in shared memory, and its hot calls over pipes: see `Transport`."""

    def __init__(self, plan: SharedPlan, writers: Writers, kept: KeptSlots) -> None:
        """
        Args:
            plan: says what is shared.
            writers: the actors that begin the run.
            kept: the slots that they may have had in the run before.
        """
        self._plan, self.kept = plan, kept
        self._push_bytes = writers.push_bytes
        parts = spans(writers.vector_bytes // ITEM_BYTES, len(writers.servers))
        self._part_bytes = [ITEM_BYTES * (part.stop - part.start) for part in parts]
        shards = dict(zip(writers.servers, self._part_bytes, strict=True))
        weights = shards if plan.shares_weights else {}
        workers = writers.workers
        slots = kept.begin(dict.fromkeys(workers.values(), writers.push_bytes) | weights)
        self._gradients = {worker: slots[actor] for worker, actor in workers.items()}
        """Worker -> its slots."""
        self._weights = [slots[actor] for actor in weights]
        self._pulled: dict[str, tuple[Any, ...]] = {}
        """Worker -> the slots of its weights, which it uses where they are until it is given
        others."""
        self._channels: Channels | None = None
        """None: some vectors are not shared, or several servers have parts of them."""

    @property
    def held_bytes(self) -> int:
        return self.kept.held_bytes

    def attach(self, failure_of: Callable[[Any], Failure | None]) -> None:
        if len(self._weights) == 1:
            self._channels = Channels(failure_of)

    def room(self, actor: str, message: Message, node: str | None) -> tuple[Lease, ...]:
        """See `Transport.room`: a worker on another node than the servers returns its gradient."""
        match message:
            case StepCall() if node == self._plan.node:
                if actor not in self._gradients:
                    self._gradients[actor] = slots_of(self._push_bytes)
                return (self._gradients[actor].take(),)
            case PublishCall() | ApplyCall(publishes=True):
                return tuple(slots.take() for slots in self._weights)
        return ()

    def call(self, request: CallRequest, by_ray: Callable[[], IssuedCall]) -> IssuedCall:
        if isinstance(request.message, StepCall) and request.inputs:
            self._pulled[request.actor] = request.reads
        if self._channels is None:
            return by_ray()
        if isinstance(request.message, HOT) and all(
            isinstance(each, PipedCall) for each in request.inputs
        ):
            makes = not isinstance(request.message, ApplyCall) or request.message.publishes
            assert bool(request.leases) == makes, "a worker on another node than the server"
            call = PipedCall(self._channels.channel(request.actor, request.handle), request)
            call.channel.call(call)
            return call
        channel = self._channels.get(request.actor)
        return by_ray() if channel is None else channel.by_ray(by_ray)

    def expect(self, reference: Any) -> None:
        if self._channels is not None:
            self._channels.expect(reference)

    def arrived(self, references: Collection[Any], timeout_s: float) -> Iterable[Any]:
        if self._channels is None:
            return await_references(references, timeout_s)
        return self._channels.arrived(timeout_s)

    def forget(self, actor: str, why: str) -> None:
        self._hang_up(actor, why)
        self._pulled.pop(actor, None)
        slots = self._gradients.pop(actor, None)
        if slots is not None:
            slots.close()

    def restart(self, server: str, why: str) -> None:
        self._hang_up(server, why)
        for slots in self._weights:
            slots.close()
        if self._weights:
            self._weights = [slots_of(size) for size in self._part_bytes]

    def close(self) -> None:
        if self._channels is not None:
            self._channels.close()

    def _hang_up(self, actor: str, why: str) -> None:
        """Close the pipes to an actor that is gone, or about to be ended."""
        if self._channels is not None and (channel := self._channels.get(actor)) is not None:
            channel.fail(Failure("died", why, actor))


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """What travels in shared memory in a run; see `TransportPlan`."""

    node: str
    """Ray's id of the node of the controller and of all servers. The gradients of the workers there
    are in shared memory, and those of others are object references."""
    shares_weights: bool
    """Whether the weights are, too: if all who read them are there."""
    shown: Mapping[str, str] = field(default_factory=dict)

    def begin(self, writers: Writers, before: Transport | None) -> Transport:
        kept = before.kept if isinstance(before, SharedMemory) else KeptSlots()
        return SharedMemory(self, writers, kept)
