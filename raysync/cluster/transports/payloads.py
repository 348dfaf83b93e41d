"""The actor's side of a transport: conversion between tensors and payloads."""

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
    """Convert a float32 vector to payloads, which Ray copies when the actor's method returns.

    Args:
        vector: as it travels: see `training.worker.wire`.
        sizes: the lengths of its parts; none: it is one part.
    """
    tensors = torch.split(vector, list(sizes) or [len(vector)])
    parts = [tensor.detach().cpu().numpy() for tensor in tensors]
    # Ray shares NumPy views within a node without a copy, unlike torch tensors. Small parts travel
    # inside Ray's messages, where bytes save pickling.
    return tuple(part.tobytes() if part.nbytes <= INLINE_BYTES else part for part in parts)


def incoming(*payloads: Payload) -> list[Tensor]:
    """Convert payloads to read-only tensors."""
    return [
        torch.from_numpy(np.frombuffer(payload, np.float32))
        if isinstance(payload, bytes | np.ndarray)
        else payload.read()
        for payload in payloads
    ]


def forget_run() -> None:
    """Free what transports hold of the previous run."""
    for forget in BETWEEN_RUNS:
        forget()


class PulledWeights:
    """The weights that a worker computes on: a copy, or used in place."""

    def __init__(
        self, gradient: GradientComputation, vector_bytes: int, *, may_share: bool
    ) -> None:
        self._gradient, self._vector_bytes = gradient, vector_bytes
        self._may_share = may_share  # if they are on a CPU, and steps only read them
        self._in_place: InPlace | None = None

    def read(self, weights: Sequence[Payload]) -> None:
        self._gradient.read_weights([] if self._show(weights) else incoming(*weights))

    def check(self) -> None:
        """Check that the weights were not overwritten during a step."""
        if self._in_place is not None:
            self._in_place.check()

    def _show(self, weights: Sequence[Payload]) -> bool:
        """Show weights in place; False: they have to be copied."""
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
    """Trigger torch's one-time warning about read-only memory, in which vectors arrive."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        incoming(bytes(4))


_quieten()
