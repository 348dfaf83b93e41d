"""The codecs of a push: gradients of N numbers in fewer bytes, as shorter vectors of float32."""

from __future__ import annotations

from math import ceil
from typing import Protocol

import torch
from torch import Tensor

BLOCK = 1024  # numbers that share a scale
LEVELS = 127


class Codec(Protocol):
    """Encodes vectors (N,) of float32 as shorter ones."""

    def encoded_size(self, numbers: int) -> int:
        """Count the float32 numbers that N numbers take, encoded."""

    def encode(self, vector: Tensor, out: Tensor, seed: int) -> None:
        """Encode (N,) into all of `out` (encoded size,); the seed is of stochastic rounding."""

    def decode(self, encoded: Tensor, numbers: int) -> Tensor:
        """Return (N,) in float32 or bfloat16, perhaps as a view."""


class Bf16:
    def encoded_size(self, numbers: int) -> int:
        return -(-numbers // 2)

    def encode(self, vector: Tensor, out: Tensor, seed: int) -> None:
        rounded = out.view(torch.bfloat16)
        rounded[: len(vector)].copy_(vector)
        rounded[len(vector) :].zero_()

    def decode(self, encoded: Tensor, numbers: int) -> Tensor:
        return encoded.view(torch.bfloat16)[:numbers]


class Int8:
    """Levels from -127 to 127, one byte each, behind the scales of their blocks.

    Stochastic rounding makes the mean error 0 (QSGD, Alistarh et al. 2017).
    """

    def encoded_size(self, numbers: int) -> int:
        return -(-numbers // BLOCK) + -(-numbers // 4)

    def encode(self, vector: Tensor, out: Tensor, seed: int) -> None:
        blocks = -(-len(vector) // BLOCK)
        padded = vector.new_zeros(blocks, BLOCK)
        padded.view(-1)[: len(vector)] = vector
        scales = out[:blocks]
        torch.div(padded.abs().amax(1), LEVELS, out=scales)
        levels = padded.div_(scales.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1))
        draw = torch.Generator(levels.device).manual_seed(seed)
        levels.add_(torch.rand(levels.shape, generator=draw, device=levels.device)).floor_()
        numbers = out[blocks:].view(torch.int8)
        numbers.zero_()
        numbers[: len(vector)] = levels.clamp_(-LEVELS, LEVELS).view(-1)[: len(vector)]

    def decode(self, encoded: Tensor, numbers: int) -> Tensor:
        blocks = -(-numbers // BLOCK)
        decoded = encoded.new_zeros(blocks * BLOCK)
        decoded[:numbers] = encoded[blocks:].view(torch.int8)[:numbers]
        return decoded.view(blocks, BLOCK).mul_(encoded[:blocks].unsqueeze(1)).view(-1)[:numbers]


class TopK:
    """The largest magnitudes, and behind them their indices of 32 bits (Aji and Heafield 2017)."""

    def __init__(self, fraction: float) -> None:
        self._fraction = fraction

    def encoded_size(self, numbers: int) -> int:
        return 2 * self._count(numbers)

    def encode(self, vector: Tensor, out: Tensor, seed: int) -> None:
        count = self._count(len(vector))
        places = torch.topk(vector.abs(), count, sorted=False).indices.sort().values
        out[:count] = vector[places]
        out[count:].view(torch.int32).copy_(places)

    def decode(self, encoded: Tensor, numbers: int) -> Tensor:
        count = len(encoded) // 2
        places = encoded[count:].view(torch.int32).long()
        return encoded.new_zeros(numbers).index_copy_(0, places, encoded[:count])

    def _count(self, numbers: int) -> int:
        return min(numbers, max(1, ceil(self._fraction * numbers)))


def codec_of(name: str, fraction: float) -> Codec | None:
    """Return the codec of a format; None: float32, as computed."""
    match name:
        case "float32":
            return None
        case "bf16":
            return Bf16()
        case "int8":
            return Int8()
    assert name == "top-k", f"no format: {name}"
    return TopK(fraction)
