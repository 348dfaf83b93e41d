"""Errors of a full object store: the run resumes once there is space.

Ray 2.60 spills to disk whatever is not mapped, so calls only fail if the disk is full, too. That is
no error of user code: the run resumes as often as `cluster.restarts` allows.
"""

from __future__ import annotations

from contextlib import suppress

import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError, RayTaskError

from raysync.cluster.clock import ANSWER_S, within


def is_full(error: BaseException | None) -> bool:
    """Whether an error means that an object found no space."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return isinstance(cause, ObjectStoreFullError | OutOfDiskError)


def full_reason() -> str:
    """Describe a full object store, with the sizes of the cluster's stores."""
    sizes: list[float] = []
    with suppress(TimeoutError):
        sizes = within(ANSWER_S, _sizes)
    if not sizes:
        text = ""
    elif len(set(sizes)) == 1:
        text = f" ({sizes[0] / 1e6:.0f} MB a node)"
    else:
        text = f" ({min(sizes) / 1e6:.0f} to {max(sizes) / 1e6:.0f} MB a node)"
    return (
        f"an object store of Ray is full{text}, and so is the disk to which it spills; give the"
        " nodes larger stores (ray start --object-store-memory), or free space on their disks"
    )


def _sizes() -> list[float]:
    return [
        node["Resources"].get("object_store_memory", 0.0) for node in ray.nodes() if node["Alive"]
    ]
