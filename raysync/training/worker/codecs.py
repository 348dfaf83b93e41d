"""The codecs of a push: how a gradient becomes fewer bytes, and what comes of these.

bf16    rounded to bfloat16, to the nearest, ties to even: 2 bytes a number
int8    in blocks of 1,024 with a scale each, rounded at random up or down, so that the mean error
        is 0 (QSGD, Alistarh et al. 2017, with 127 levels): 1 byte a number
top-k   the numbers of the largest magnitude, with their places: 8 bytes for each (Aji and Heafield
        2017)

What is encoded is a vector of float32 to all that it passes, which copy it bit by bit.

Shape legend: N = numbers of a gradient, or of a shard's part of one.
"""

from __future__ import annotations

from math import ceil
from typing import Protocol

import torch
from torch import Tensor

BLOCK = 1024
"""The numbers that share a scale."""
LEVELS = 127


class Codec(Protocol):
    """Encodes vectors (N,) of float32 as shorter ones."""

    def room(self, numbers: int) -> int:
        """Return how many float32 numbers N take, encoded."""

    def encode(self, vector: Tensor, out: Tensor, seed: int) -> None:
        """Write a vector (N,), encoded, into (room,).

        Args:
            vector: is only read.
            out: every bit of it is written.
            seed: of what is rounded at random.
        """

    def decode(self, encoded: Tensor, numbers: int) -> Tensor:
        """Return what has arrived, (N,), in float32 or in bfloat16; it may be a view."""


class Bf16:
    """Numbers of bfloat16, two in the room of one."""

    def room(self, numbers: int) -> int:
        return -(-numbers // 2)

    def encode(self, vector: Tensor, out: Tensor, seed: int) -> None:
        rounded = out.view(torch.bfloat16)
        rounded[: len(vector)].copy_(vector)
        rounded[len(vector) :].zero_()

    def decode(self, encoded: Tensor, numbers: int) -> Tensor:
        return encoded.view(torch.bfloat16)[:numbers]


class Int8:
    """Levels from -127 to 127 in the room of a quarter each, behind the scales of their blocks."""

    def room(self, numbers: int) -> int:
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
    """The largest numbers, and behind them their places, as 32 bits each."""

    def __init__(self, fraction: float) -> None:
        """`fraction`: the share of the numbers that is sent, at least one."""
        self._fraction = fraction

    def room(self, numbers: int) -> int:
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
    """Return the codec of a format; None: float32, as it was computed.

    Args:
        name: of the format.
        fraction: for `top-k`.
    """
    match name:
        case "float32":
            return None
        case "bf16":
            return Bf16()
        case "int8":
            return Int8()
    assert name == "top-k", f"no format: {name}"
    return TopK(fraction)
