"""The transport that works everywhere: vectors are values of Ray's object store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from raysync.cluster.clock import sleep_s
from raysync.cluster.transports.transport import (
    MIB,
    CallRequest,
    Choice,
    IssuedCall,
    Lease,
    ServerNode,
    Sites,
    Transport,
    Writers,
    needed_bytes,
)
from raysync.config import Experiment
from raysync.engine.backend import Failure
from raysync.engine.messages import Message


class ObjectStore:
    """Gradients and weights are what actor calls return: see `Transport`."""

    held_bytes = 0

    def attach(self, failure_of: Callable[[Any], Failure | None]) -> None:
        """See `Transport.attach`: a failed call of Ray's says so itself."""

    def room(self, actor: str, message: Message, node: str | None) -> tuple[Lease, ...]:
        return ()

    def call(self, request: CallRequest, by_ray: Callable[[], IssuedCall]) -> IssuedCall:
        return by_ray()

    def expect(self, reference: Any) -> None: ...

    def arrived(self, references: Collection[Any], timeout_s: float) -> Iterable[Any]:
        return await_references(references, timeout_s)

    def forget(self, actor: str, why: str) -> None: ...

    def restart(self, server: str, why: str) -> None: ...

    def close(self) -> None: ...


def await_references(references: Collection[Any], timeout_s: float) -> Iterable[Any]:
    """Wait for one of some references; return those that are there."""
    if not references:  # all wait for a timer, or for a worker to come back
        sleep_s(timeout_s)
        return ()
    # While Ray fetches an object to this node, it does not notice that others are there.
    ready, _ = ray.wait(list(references), num_returns=1, timeout=timeout_s, fetch_local=False)
    return ready  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ObjectStorePlan:
    """See `TransportPlan`."""

    shown: Mapping[str, str] = field(default_factory=dict)

    def begin(self, writers: Writers, before: Transport | None) -> Transport:
        return ObjectStore()


def by_object_store(
    experiment: Experiment, vector_bytes: int, sites: Sites, node: ServerNode
) -> Choice:
    """Choose the object store."""
    return ObjectStorePlan(), [store_notice(experiment, vector_bytes, node.store_bytes())]


def store_notice(experiment: Experiment, vector_bytes: int, store_bytes: float) -> str:
    """Return what a user should know of a run whose vectors may fill Ray's object store, on the
    node of its server; "" if there is room for them.

    Args:
        experiment: its vectors are object references.
        vector_bytes: the size of a gradient, and of the weights.
        store_bytes: the size of the store on that node.
    """
    needed = needed_bytes(experiment, vector_bytes)
    if needed <= store_bytes:
        return ""
    return (
        f"Gradients and weights take up to {needed / MIB:,.0f} MiB of the object store on the"
        f" server's node, which has {store_bytes / MIB:,.0f} MiB: Ray then moves some to disk,"
        " which is slow. A smaller cluster.server_log_bytes needs less; `ray start"
        " --object-store-memory` gives more."
    )
