"""The actor's side of a transport: vectors as tensors here, and as they travel.

What a call returns is in one part a server shard. A large part is a NumPy view of the flat float32
vector, which Ray shares without a copy within a node (a torch tensor through the object store costs
about ten times as much). A small one travels inside Ray's own messages, and there plain bytes save
pickling. A vector that lies elsewhere is a `Remote`. What arrives is read-only.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysync.cluster.transports.transport import BETWEEN_RUNS, INLINE_BYTES, InPlace, Remote

if TYPE_CHECKING:
    from raysync.training.worker.gradient import GradientComputation

Payload = npt.NDArray[Any] | bytes | Remote


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
    """Return arrived vectors as tensors, for reading only."""
    return [
        torch.from_numpy(np.frombuffer(payload, np.float32))
        if isinstance(payload, bytes | np.ndarray)
        else payload.read()
        for payload in payloads
    ]


def forget_run() -> None:
    """Let go of what transports hold of the run before."""
    for forget in BETWEEN_RUNS:
        forget()


class PulledWeights:
    """The weights that a worker computes on: copied, or used where their transport has them."""

    def __init__(
        self, gradient: GradientComputation, vector_bytes: int, *, may_share: bool
    ) -> None:
        """
        Args:
            gradient: computes on them.
            vector_bytes: their size.
            may_share: whether they may be used where they are: on a CPU, and only read.
        """
        self._gradient, self._vector_bytes = gradient, vector_bytes
        self._may_share = may_share
        self._in_place: InPlace | None = None

    def read(self, weights: Sequence[Payload]) -> None:
        """Take the weights that have arrived, in a part a shard."""
        self._gradient.read_weights([] if self._is_shown(weights) else incoming(*weights))

    def check(self) -> None:
        """Check that a step had the same weights from its beginning to its end."""
        if self._in_place is not None:
            self._in_place.check()

    def _is_shown(self, weights: Sequence[Payload]) -> bool:
        if self._in_place is None:
            first = weights[0]
            if isinstance(first, bytes | np.ndarray) or not self._may_share:
                return False
            self._in_place = first.in_place(self._vector_bytes)
            if self._in_place is None:
                return False
            self._gradient.move_weights(self._in_place.vector)
        return self._in_place.show(weights)


def _quieten() -> None:
    """Use up the warning that torch gives once a process of read-only memory: vectors arrive so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        incoming(bytes(4))


_quieten()
