"""The format in which gradients travel from the workers to the server.

float32     (P + Q,): the gradient, and the buffers behind it
bf16        the gradient rounded to bfloat16, two numbers in the room of one; the buffers behind it
            as they are, since a count of batches or a variance would not survive the rounding

A vector in bf16 is a shorter vector of float32 to all that it passes, which copy it bit by bit:
transports, the log of a server, checkpoints. Its end are the buffers in both formats. The server
adds and steps in float32; weights travel in float32, too.

bfloat16 has the range of float32, so that no gradient needs a scale, and 8 bits of a fraction. Each
gradient is rounded once, to the nearest, ties to even: an error of at most 2^-9 of each number,
that is independent from step to step. DistributedDataParallel's `bf16_compress_hook` sends the same
bytes, and adds in bfloat16, too.

Shape legend: P = trainable parameters, Q = numbers of float32 that all buffers take.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from raysync.training.server.vector_parts import spans

FORMATS = ("float32", "bf16")


class Wire:
    """Puts the gradients of a model into a format, in a part for each shard of the server."""

    def __init__(self, name: str, parameters: int, buffers: int, shards: int = 1) -> None:
        """
        Args:
            name: one of `FORMATS`.
            parameters: P.
            buffers: Q.
            shards: the number of parts that a vector is cut into: see `vector_parts`.
        """
        self.is_plain = name == "float32"
        """Whether a vector travels as it was computed."""
        self._parts = list(_parts_of(parameters, buffers, shards))
        self.sizes = [
            sum(part) if self.is_plain else room(part[0]) + part[1] for part in self._parts
        ]
        """The size of each part, in numbers of float32."""
        self._vector: Tensor | None = None

    def encode(self, vector: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a gradient with the buffers behind it, (P + Q,), as it travels.

        Args:
            vector: on any device; it is what is returned if the format is float32.
            out: where to write it, (sum of the sizes,) on the same device; None: into a vector that
                is reused.
        """
        if self.is_plain:
            return vector
        if out is None:
            if self._vector is None:
                self._vector = torch.empty(sum(self.sizes), device=vector.device)
            out = self._vector
        begin = 0
        for (parameters, buffers), part in zip(
            self._parts, torch.split(out, self.sizes), strict=True
        ):
            behind = begin + parameters
            numbers = part[: room(parameters)].view(torch.bfloat16)
            numbers[:parameters].copy_(vector[begin:behind])
            numbers[parameters:].zero_()
            begin = behind + buffers
            part[room(parameters) :].copy_(vector[behind:begin])
        return out


def room(parameters: int) -> int:
    """Return the numbers of float32 in whose room so many of bfloat16 fit."""
    return -(-parameters // 2)


def gradient_of(name: str, vector: Tensor, parameters: int) -> Tensor:
    """Return the gradient of a vector, or of a part of one, as it has arrived: a view, (P,), in
    float32 or in bfloat16.

    Args:
        name: the format.
        vector: what `Wire.encode` returned, or one of its parts.
        parameters: P, of the part.
    """
    if name == "float32":
        return vector[:parameters]
    return vector[: room(parameters)].view(torch.bfloat16)[:parameters]


def _parts_of(parameters: int, buffers: int, shards: int) -> Iterator[tuple[int, int]]:
    """Yield how many parameters, and elements of buffers, each part has."""
    for part in spans(parameters + buffers, shards):
        own = min(part.stop, parameters) - min(part.start, parameters)
        yield own, part.stop - part.start - own
