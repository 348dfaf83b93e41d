"""How flat vectors travel between actors.

`object-ref`: returned from actor calls, in one part a server shard, and passed on as top-level
references. A large part is a NumPy view of the flat float32 vector, which Ray shares without a copy
within a node (a torch tensor through the object store costs about ten times as much). A small one
travels inside Ray's own messages, and there plain bytes save pickling: 7 to 8 % more gradients per
second of a small model, measured in six interleaved pairs.

`shared-memory`: written in place into a slot that the driver lends (`shared_memory`); what is
returned, and passed on, is its handle. Large weights are used where they are (`weights_in_place`).

`nixl`: written in place into a buffer that the driver lends (`direct_vectors`), and returned by a
method of its own, `buffer`; what arrives at another actor is a tensor.

What arrives is read-only.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysync.cluster.direct_vectors import Buffer, Kept
from raysync.cluster.registered_memory import RegisteredMemory
from raysync.cluster.shards import INLINE_BYTES
from raysync.cluster.shared_memory import Handle, Mappings

Payload = npt.NDArray[Any] | bytes | Handle | Buffer | Kept | Tensor


def _tensor(data: Any) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.float32))


MAPPINGS = Mappings(_tensor)
"""The shared memory that this process has mapped."""
MEMORY = RegisteredMemory()
"""The memory of this process that others read directly, and what it has taken from theirs."""


def outgoing(vector: Tensor, sizes: Sequence[int] = ()) -> tuple[Payload, ...]:
    """Return a float32 vector of this process as an actor returns it.

    Ray copies it when the method returns, so the vector may be reused then.

    Args:
        vector: as it travels: see `training.wire`.
        sizes: those of the parts that it is cut into; none: it is one part.
    """
    cut = torch.split(vector, list(sizes) or [len(vector)])
    parts = [part.detach().cpu().numpy() for part in cut]
    return tuple(part.tobytes() if part.nbytes <= INLINE_BYTES else part for part in parts)


def incoming(*payloads: Payload) -> list[Tensor]:
    """Return arrived vectors as tensors, for reading only.

    Raises:
        TornVector: a vector in shared memory is not the one that its handle names.
        KeyError: the vector of a handle was never taken, or has been freed.
    """
    return [_incoming(payload) for payload in payloads]


def _incoming(payload: Payload) -> Tensor:
    match payload:
        case Tensor():
            return payload
        case Buffer() | Kept():
            return MEMORY.read(payload)
        case Handle():
            vector: Tensor = MAPPINGS.read(payload)
            return vector
        case _:
            return _tensor(payload)


@contextmanager
def written(handle: Handle | Buffer) -> Iterator[Tensor]:
    """Give the room for a vector in memory that others read; it is there when the `with` block
    ends.
    """
    if isinstance(handle, Buffer):
        yield MEMORY.buffer(handle)
        return
    yield MAPPINGS.begin(handle)
    MAPPINGS.finish(handle)


def forget_all(device: str = "cpu", *, is_pinned: bool = False) -> None:
    """Forget the vectors of the run before; see `RegisteredMemory.begin`.

    Shared memory stays mapped as long as it is there: the next run may use it again.
    """
    MAPPINGS.forget_gone()
    MEMORY.begin(device, is_pinned=is_pinned)


def _quieten() -> None:
    """Use up the warning that torch gives once a process of read-only memory: vectors arrive so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        incoming(bytes(4))


_quieten()
