"""The actor's side of a transport: conversion between values and payloads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raysync.cluster.transports.transport import BETWEEN_RUNS, INLINE_BYTES, InPlace, Remote

# A flat vector is float32: bytes if it is small. Activations keep their shape and type, except that
# bfloat16, which NumPy lacks, is uint16. A norm is a number, and a file an array of bytes.
Payload = npt.NDArray[Any] | bytes | float | Remote | None


def outgoing(value: Any, sizes: Sequence[int] = ()) -> tuple[Payload, ...]:
    """Convert a value to payloads, which Ray copies when the actor's method returns.

    Args:
        value: a tensor on the host, a file, a number, or None.
        sizes: the lengths of a vector's parts; none: it is one part.
    """
    if isinstance(value, bytes | memoryview):
        return (np.frombuffer(value, np.uint8),)  # Ray copies `bytes` at each hop
    if not isinstance(value, Tensor):
        return (value,)
    if value.dim() != 1 or value.dtype != torch.float32:
        bits = value.view(torch.uint16) if value.dtype == torch.bfloat16 else value
        return (bits.numpy(),)
    parts = [part.detach().cpu().numpy() for part in torch.split(value, list(sizes) or len(value))]
    # Ray shares NumPy views within a node without a copy, unlike torch tensors. Small parts travel
    # inside Ray's messages, where bytes save pickling.
    return tuple(part.tobytes() if part.nbytes <= INLINE_BYTES else part for part in parts)


def incoming(*payloads: Payload) -> list[Any]:
    """Convert payloads to read-only tensors, numbers or files."""
    return [_value_of(payload) for payload in payloads]


def _value_of(payload: Payload) -> Any:
    if isinstance(payload, bytes):
        return torch.from_numpy(np.frombuffer(payload, np.float32))
    if isinstance(payload, np.ndarray):
        if payload.dtype == np.uint8:
            return payload.tobytes()
        tensor = torch.from_numpy(payload)
        # stages send floats only, so uint16 is bfloat16
        return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
    if payload is None or isinstance(payload, float):
        return payload
    return payload.read()


def forget_run() -> None:
    """Free what transports hold of the previous run."""
    for forget in BETWEEN_RUNS:
        forget()


class PulledWeights:
    """The weights that a worker computes on: copies, or used in place."""

    def __init__(
        self,
        move: Callable[[Tensor], None],  # moves the worker's weights into a vector
        vector_bytes: int,
        *,
        may_share: bool,  # if they are on a CPU, and steps only read them
    ) -> None:
        self._move, self._vector_bytes = move, vector_bytes
        self._may_share = may_share
        self._in_place: InPlace | None = None

    def read(self, weights: Sequence[Payload]) -> list[Tensor]:
        """Return the weights, in parts, or in the vector that the worker uses anyway."""
        if not self._show(weights):
            return incoming(*weights)
        assert self._in_place is not None, "nothing to show weights in"
        return [self._in_place.vector]

    def check(self) -> None:
        """Check that the weights were not overwritten during a step."""
        if self._in_place is not None:
            self._in_place.check()

    def _show(self, weights: Sequence[Payload]) -> bool:
        """Show weights in place; False: they have to be copied."""
        if self._in_place is None:
            first = weights[0]
            if isinstance(first, bytes | float | np.ndarray | None) or not self._may_share:
                return False
            self._in_place = first.in_place(self._vector_bytes)
            if self._in_place is None:
                return False
            self._move(self._in_place.vector)
        return self._in_place.show(weights)


def _quieten() -> None:
    """Trigger torch's one-time warning about read-only memory, in which vectors arrive."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        incoming(bytes(4))


_quieten()
