"""The format in which pushes travel from the workers to the server.

float32     (P + Q,): the gradient, and the buffers behind it
others      the gradient encoded (see `codecs`), and the buffers behind it as they are, since a
            count of batches or a variance would not survive the rounding

An encoded vector is a shorter vector of float32 to all that it passes: transports, the log of a
server, checkpoints. Its end are the buffers in all formats. The server adds and steps in float32;
weights travel in float32, too.

With *error feedback* a worker adds to each push what encoding its earlier pushes has lost (Seide et
al. 2014; Karimireddy et al. 2019): so nothing is lost, it only comes later.

Shape legend: P = trainable parameters, Q = numbers of float32 that all buffers take.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from raysync.training.server.vector_parts import spans
from raysync.training.worker.codecs import codec_of

FORMATS = ("float32", "bf16", "int8", "top-k")
FRACTION = 0.01
"""The share of the numbers that `top-k` sends by default."""


class Wire:
    """Puts the gradients of a model into a format, in a part for each shard of the server."""

    def __init__(
        self, name: str, parameters: int, buffers: int, shards: int = 1, fraction: float = FRACTION
    ) -> None:
        """
        Args:
            name: one of `FORMATS`.
            parameters: P.
            buffers: Q.
            shards: the number of parts that a vector is cut into: see `vector_parts`.
            fraction: for `top-k`.
        """
        self._codec = codec_of(name, fraction)
        self.is_plain = self._codec is None
        """Whether a vector travels as it was computed."""
        self._parts = list(_parts_of(parameters, buffers, shards))
        self._rooms = [
            part[0] if self._codec is None else self._codec.room(part[0]) for part in self._parts
        ]
        self.sizes = [room + part[1] for room, part in zip(self._rooms, self._parts, strict=True)]
        """The size of each part, in numbers of float32."""
        self._vector: Tensor | None = None

    def encode(
        self,
        vector: Tensor,
        out: Tensor | None = None,
        residual: Tensor | None = None,
        seed: int = 0,
    ) -> Tensor:
        """Return a gradient with the buffers behind it, (P + Q,), as it travels.

        Args:
            vector: on any device; it is what is returned if the format is float32.
            out: where to write it, (sum of the sizes,) on the same device; None: into a vector that
                is reused.
            residual: (P,), what earlier pushes have lost, which is added; it becomes what they and
                this one have. None: there is no error feedback.
            seed: of what is rounded at random.
        """
        codec = self._codec
        if codec is None:
            return vector
        if out is None:
            if self._vector is None:
                self._vector = torch.empty(sum(self.sizes), device=vector.device)
            out = self._vector
        begin = 0
        for (parameters, buffers), room, part in zip(
            self._parts, self._rooms, torch.split(out, self.sizes), strict=True
        ):
            numbers, end = vector[begin : begin + parameters], begin + parameters
            if residual is not None:
                left = residual[begin:end]
                numbers = left.add_(numbers)
            codec.encode(numbers, part[:room], seed)
            if residual is not None:
                left.sub_(codec.decode(part[:room], parameters))
            begin = end + buffers
            part[room:].copy_(vector[end:begin])
        return out


def gradient_of(name: str, vector: Tensor, parameters: int, buffers: int) -> Tensor:
    """Return the gradient of a vector, or of a part of one, as it has arrived: (P,), in float32 or
    in bfloat16; it may be a view.

    Args:
        name: the format.
        vector: what `Wire.encode` returned, or one of its parts.
        parameters: P, of the part.
        buffers: Q, of the part.
    """
    codec = codec_of(name, FRACTION)  # what is decoded says itself how much it is
    if codec is None:
        return vector[:parameters]
    return codec.decode(vector[: len(vector) - buffers], parameters)


def _parts_of(parameters: int, buffers: int, shards: int) -> Iterator[tuple[int, int]]:
    """Yield how many parameters, and elements of buffers, each part has."""
    for part in spans(parameters + buffers, shards):
        own = min(part.stop, parameters) - min(part.start, parameters)
        yield own, part.stop - part.start - own
