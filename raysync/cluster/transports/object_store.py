"""The transport that works everywhere: vectors are values in Ray's object store."""

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
    """The default transport: actor calls return gradients and weights."""

    held_bytes = 0

    def attach(self, failure_of: Callable[[Any], Failure | None]) -> None: ...

    def reserve(self, actor: str, message: Message, node: str | None) -> tuple[Lease, ...]:
        return ()

    def call(self, request: CallRequest) -> IssuedCall | None:
        return None

    def expect(self, reference: Any) -> None: ...

    def await_ready(self, references: Collection[Any], timeout_s: float) -> Iterable[Any]:
        return await_references(references, timeout_s)

    def forget(self, actor: str, why: str) -> None: ...

    def restart(self, server: str, why: str) -> None: ...

    def close(self) -> None: ...


def await_references(references: Collection[Any], timeout_s: float) -> Iterable[Any]:
    """Wait for one reference, and return all that are ready."""
    if not references:  # all wait for a timer or a worker's restart
        sleep_s(timeout_s)
        return ()
    # While Ray fetches an object to this node, it does not notice others that are ready.
    ready, _ = ray.wait(list(references), num_returns=1, timeout=timeout_s, fetch_local=False)
    return ready  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class ObjectStorePlan:
    transports: Mapping[str, str] = field(default_factory=dict)

    def begin(self, writers: Writers, previous: Transport | None) -> Transport:
        return ObjectStore()


def by_object_store(
    experiment: Experiment, vector_bytes: int, sites: Sites, node: ServerNode
) -> Choice:
    return ObjectStorePlan(), [store_notice(experiment, vector_bytes, node.store_bytes())]


def store_notice(experiment: Experiment, vector_bytes: int, store_bytes: float) -> str:
    """Warn of a run whose vectors may fill the object store of the server's node; "" if not."""
    needed = needed_bytes(experiment, vector_bytes)
    if needed <= store_bytes:
        return ""
    return (
        f"Gradients and weights take up to {needed / MIB:,.0f} MiB of the object store on the"
        f" server's node, which has {store_bytes / MIB:,.0f} MiB: Ray then moves some to disk,"
        " which is slow. A smaller cluster.server_log_bytes needs less; `ray start"
        " --object-store-memory` gives more."
    )
