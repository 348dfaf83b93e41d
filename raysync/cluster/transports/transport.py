"""How flat vectors travel between actors.

`object-ref`: returned from actor calls, in one part a server shard, and passed on as top-level
references. A large part is a NumPy view of the flat float32 vector, which Ray shares without a copy
within a node (a torch tensor through the object store costs about ten times as much). A small one
travels inside Ray's own messages, and there plain bytes save pickling: 7 to 8 % more gradients per
second of a small model, measured in six interleaved pairs.

`shared-memory`: written in place into a slot that the driver lends (`shared_memory`); what is
returned, and passed on, is its handle. Large weights are used where they are (`weights_in_place`).

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

from raysync.cluster.shards import INLINE_BYTES
from raysync.cluster.transports.shared_memory import Handle, Mappings

Payload = npt.NDArray[Any] | bytes | Handle


def _tensor(data: Any) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, np.float32))


MAPPINGS = Mappings(_tensor)
"""The shared memory that this process has mapped."""


def outgoing(vector: Tensor, sizes: Sequence[int] = ()) -> tuple[Payload, ...]:
    """Return a float32 vector of this process as an actor returns it.

    Ray copies it when the method returns, so the vector may be reused then.

    Args:
        vector: as it travels: see `training.worker.wire`.
        sizes: those of the parts that it is cut into; none: it is one part.
    """
    cut = torch.split(vector, list(sizes) or [len(vector)])
    parts = [part.detach().cpu().numpy() for part in cut]
    return tuple(part.tobytes() if part.nbytes <= INLINE_BYTES else part for part in parts)


def incoming(*payloads: Payload) -> list[Tensor]:
    """Return arrived vectors as tensors, for reading only.

    Raises:
        TornVector: a vector in shared memory is not the one that its handle names.
    """
    return [
        MAPPINGS.read(payload) if isinstance(payload, Handle) else _tensor(payload)
        for payload in payloads
    ]


@contextmanager
def written(handle: Handle) -> Iterator[Tensor]:
    """Give the slot for a vector in shared memory; it is there when the `with` block ends."""
    yield MAPPINGS.begin(handle)
    MAPPINGS.finish(handle)


def forget_all() -> None:
    """Forget the vectors of the run before.

    Shared memory stays mapped as long as it is there: the next run may use it again.
    """
    MAPPINGS.forget_gone()


def _quieten() -> None:
    """Use up the warning that torch gives once a process of read-only memory: vectors arrive so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        incoming(bytes(4))


_quieten()
