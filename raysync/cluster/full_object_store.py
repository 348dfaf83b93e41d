"""What becomes of a run when an object store is full.

Ray keeps gradients, weights and checkpoints in the object store of a node. A full one is no error
yet: Ray writes what nobody maps to disk, and puts further objects there (measured with Ray 2.60 and
a store of 80 MB that was mapped whole: the first of them took 2 s, the next as long as before).
Only where the disk is full, too, a call fails. That is nobody's code: the run goes on from its
checkpoint as soon as there is room, as often as `cluster.restarts` allows.
"""

from __future__ import annotations

from contextlib import suppress

import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayTaskError

from raysync.cluster.clock import ANSWER_S, within


def is_full(error: BaseException | None) -> bool:
    """Say whether an error means that an object found no room."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return isinstance(cause, ObjectStoreFullError | OutOfDiskError)


def full_reason() -> str:
    """Say that an object store is full, and how large those of the cluster are."""
    sizes: list[float] = []
    with suppress(TimeoutError):
        sizes = within(ANSWER_S, _sizes)
    if not sizes:
        size = ""
    elif len(set(sizes)) == 1:
        size = f" ({sizes[0] / 1e6:.0f} MB a node)"
    else:
        size = f" ({min(sizes) / 1e6:.0f} to {max(sizes) / 1e6:.0f} MB a node)"
    return (
        f"an object store of Ray is full{size}, and so is the disk that it goes on to; give the"
        " nodes larger ones (ray start --object-store-memory), or make room on their disks"
    )


def _sizes() -> list[float]:
    return [
        node["Resources"].get("object_store_memory", 0.0) for node in ray.nodes() if node["Alive"]
    ]
