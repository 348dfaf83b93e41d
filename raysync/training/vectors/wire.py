"""The format in which pushes travel from the workers to the server.

A push is the gradient, encoded by a codec unless in float32, and the buffers as they are, since a
count of batches or a variance would not survive the rounding. Encoded vectors are float32 to
transports and checkpoints; weights travel in float32. P: trainable parameters, Q: buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from raysync.training.vectors.codecs import codec_of
from raysync.training.vectors.parts import spans

FORMATS = ("float32", "bf16", "int8", "top-k")
FRACTION = 0.01  # the default of `top-k`


class _PartSize(NamedTuple):
    parameters: int
    buffers: int  # elements of buffers


class Wire:
    """Puts gradients into a format, in a part for each shard of the server.

    *Error feedback* adds the encoding errors of earlier pushes (Seide et al. 2014; Karimireddy et
    al. 2019).
    """

    def __init__(
        self, name: str, parameters: int, buffers: int, shards: int = 1, fraction: float = FRACTION
    ) -> None:
        self._codec = codec_of(name, fraction)
        self.is_plain = self._codec is None
        self._parts = list(_part_sizes(parameters, buffers, shards))
        self._encoded_sizes = [
            part.parameters if self._codec is None else self._codec.encoded_size(part.parameters)
            for part in self._parts
        ]
        # the size of each part, in numbers of float32
        self.sizes = [
            encoded + part.buffers
            for encoded, part in zip(self._encoded_sizes, self._parts, strict=True)
        ]
        self._vector: Tensor | None = None  # the reused result of `encode`

    def encode(
        self,
        vector: Tensor,
        out: Tensor | None = None,
        residual: Tensor | None = None,
        seed: int = 0,
    ) -> Tensor:
        """Return a gradient with the buffers behind it, (P + Q,), as it travels.

        Args:
            vector: itself the result if the format is float32.
            out: (sum of the sizes,) on the same device; None: a reused vector.
            residual: (P,), the error of earlier pushes, which is added and updated; None: no error
                feedback.
            seed: of stochastic rounding.
        """
        codec = self._codec
        if codec is None:
            return vector
        if out is None:
            if self._vector is None:
                self._vector = torch.empty(sum(self.sizes), device=vector.device)
            out = self._vector
        begin = 0
        for (parameters, buffers), encoded, target in zip(
            self._parts, self._encoded_sizes, torch.split(out, self.sizes), strict=True
        ):
            numbers, end = vector[begin : begin + parameters], begin + parameters
            if residual is not None:
                # in place: the residual holds the sum that is encoded, and then what is lost of it
                error = residual[begin:end]
                numbers = error.add_(numbers)
            codec.encode(numbers, target[:encoded], seed)
            if residual is not None:
                error.sub_(codec.decode(target[:encoded], parameters))
            begin = end + buffers
            target[encoded:].copy_(vector[end:begin])
        return out

    def decode(self, encoded: Tensor) -> Tensor:
        """Return what all shards make of their parts together, (P + Q,), in float32."""
        if self._codec is None:
            return encoded
        pieces: list[Tensor] = []
        for (parameters, buffers), part in zip(
            self._parts, torch.split(encoded, self.sizes), strict=True
        ):
            numbers, rest = torch.split(part, [len(part) - buffers, buffers])
            pieces += [self._codec.decode(numbers, parameters).float(), rest]
        return torch.cat(pieces)


def gradient_of(name: str, vector: Tensor, parameters: int, buffers: int) -> Tensor:
    """Decode the gradient (P,) of a vector or part, in float32 or bfloat16, perhaps a view."""
    codec, numbers = codec_of(name, FRACTION), len(vector) - buffers
    if codec is None:
        assert numbers == parameters, f"a push of {numbers} numbers for {parameters}"
        return vector[:parameters]
    # to decode, `top-k` needs no fraction: it has as many indices as numbers
    is_whole = name == "top-k" or numbers == codec.encoded_size(parameters)
    assert is_whole, f"a push of {numbers} encoded numbers for {parameters}"
    return codec.decode(vector[:numbers], parameters)


def _part_sizes(parameters: int, buffers: int, shards: int) -> Iterator[_PartSize]:
    for part in spans(parameters + buffers, shards):
        count = min(part.stop, parameters) - min(part.start, parameters)
        yield _PartSize(count, part.stop - part.start - count)
