"""The transport in memory that processes share: every one that writes has its own slots."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raysync.cluster.transports.object_store import await_references
from raysync.cluster.transports.shared.channels import Channels, PipedCall
from raysync.cluster.transports.shared.cuda_driver import CudaRefused
from raysync.cluster.transports.shared.device_memory import device_slots
from raysync.cluster.transports.shared.segments import Slots
from raysync.cluster.transports.shared.shared_vector import SharedVector
from raysync.cluster.transports.transport import (
    CallRequest,
    IssuedCall,
    Lease,
    Transport,
    Writers,
    most_waiting,
)
from raysync.engine.backend import Failure
from raysync.engine.messages import Message
from raysync.training.vectors.parts import spans

ITEM_BYTES = 4  # float32


def slots_of(vector_bytes: int, gpu: bytes = b"") -> Slots:
    return device_slots(vector_bytes, gpu) if gpu else Slots(vector_bytes, kind=SharedVector)


class SlotCache:
    """The slots of actors, reused by the next run: the first write of a page is slow."""

    def __init__(self) -> None:
        # (Ray's id of the actor, size of a vector, GPU) -> the slots of its latest run
        self._slots: dict[tuple[str, int, bytes], Slots] = {}

    @property
    def held_bytes(self) -> int:
        # not that of a GPU, which `LentGpu.available_bytes` counts
        slots = (each for (*_, gpu), each in self._slots.items() if not gpu)
        return sum(segment.size for each in slots for segment in each.segments)

    def begin(self, sizes: Mapping[str, int], gpu: bytes) -> dict[str, Slots]:
        """Return free slots for a run, and drop others; `sizes`: Ray's actor id -> vector bytes."""
        keys = [(actor, size, gpu) for actor, size in sizes.items()]
        open_slots = {key: slots for key, slots in self._slots.items() if not slots.is_closed}
        self._slots = {key: open_slots.pop(key).renew() for key in keys if key in open_slots}
        for slots in open_slots.values():
            slots.close()
        self._slots |= {key: slots_of(*key[1:]) for key in keys if key not in self._slots}
        return {actor: each for (actor, *_), each in self._slots.items()}


class SharedMemory:
    """The transport in shared memory, with hot calls over pipes."""

    def __init__(self, plan: SharedPlan, writers: Writers, cache: SlotCache) -> None:
        self._plan, self.cache = plan, cache
        self._push_bytes = writers.push_bytes
        parts = spans(writers.vector_bytes // ITEM_BYTES, len(writers.servers))
        self._part_bytes = [ITEM_BYTES * (part.stop - part.start) for part in parts]
        shards = dict(zip(writers.servers, self._part_bytes, strict=True))
        weights = shards if plan.shares_weights else {}
        workers = writers.workers
        sizes = dict.fromkeys(workers.values(), writers.push_bytes) | weights
        slots = cache.begin(sizes, plan.gpu)
        # worker -> its slots
        self._gradients = {worker: slots[actor] for worker, actor in workers.items()}
        self._weights = [slots[actor] for actor in weights]
        # of the server, at a time: its workers', its own, an evaluation's, and those that wait
        self._most_weights = len(workers) + 2 + most_waiting(writers.vector_bytes)
        # worker -> the leases of the weights that it uses in place until it gets others
        self._pulled: dict[str, tuple[Any, ...]] = {}
        # the pipes for hot calls; None: some weights are not shared, or several servers have parts
        self._channels: Channels | None = None

    @property
    def held_bytes(self) -> int:
        return self.cache.held_bytes

    def attach(self, failure_of: Callable[[Any], Failure | None]) -> None:
        if len(self._weights) == 1:
            self._channels = Channels(failure_of)

    def reserve(self, actor: str, message: Message, node: str | None) -> tuple[Lease, ...]:
        row = message.row
        if not (row.is_hot and message.value_count):
            return ()
        try:
            return self._leases(actor, node, is_push=row.is_push)
        except CudaRefused:  # the GPU is full: Ray returns the vector
            return ()

    def _leases(self, actor: str, node: str | None, *, is_push: bool) -> tuple[Lease, ...]:
        if not is_push:
            is_full = any(slots.leased >= self._most_weights for slots in self._weights)
            return () if is_full else tuple(slots.lease() for slots in self._weights)
        if node != self._plan.node:  # a worker on another node returns its gradient
            return ()
        if actor not in self._gradients:
            self._gradients[actor] = slots_of(self._push_bytes, self._plan.gpu)
        return (self._gradients[actor].lease(),)

    def call(self, request: CallRequest) -> IssuedCall | None:
        message, channels = request.message, self._channels
        if message.row.is_push and request.inputs:
            self._pulled[request.actor] = request.reads
        if channels is None:
            return None
        has_memory = len(request.leases) == message.value_count
        is_shared = all(isinstance(each, PipedCall) for each in request.inputs)
        if message.row.is_hot and has_memory and is_shared:
            call = PipedCall(channels.open(request.actor, request.handle), request)
            call.channel.call(call)
            return call
        if (channel := channels.get(request.actor)) is not None:
            channel.leave()
        return None

    def expect(self, reference: Any) -> None:
        if self._channels is not None:
            self._channels.expect(reference)

    def await_ready(self, references: Collection[Any], timeout_s: float) -> Iterable[Any]:
        if self._channels is None:
            return await_references(references, timeout_s)
        return self._channels.await_ready(timeout_s)

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
            self._weights = [slots_of(size, self._plan.gpu) for size in self._part_bytes]

    def close(self) -> None:
        self._pulled.clear()
        if self._channels is not None:
            self._channels.close()

    def _hang_up(self, actor: str, why: str) -> None:
        """Close the pipes of an actor that is gone, or about to be killed."""
        if self._channels is not None and (channel := self._channels.get(actor)) is not None:
            channel.fail(Failure("died", why, actor))


@dataclass(frozen=True, slots=True)
class SharedPlan:
    # Ray's id of the node of the controller and all servers. Gradients of workers there are in
    # shared memory, others are object references.
    node: str
    shares_weights: bool  # whether weights are shared: all their readers are on that node
    transports: Mapping[str, str] = field(default_factory=dict)
    gpu: bytes = b""  # the unique id of the GPU that all vectors are on; empty: they are on none

    def begin(self, writers: Writers, previous: Transport | None) -> Transport:
        cache = previous.cache if isinstance(previous, SharedMemory) else SlotCache()
        return SharedMemory(self, writers, cache)
