"""The parts of a flat vector for servers that share a model; no torch."""

from __future__ import annotations

from itertools import pairwise

# A cache line of float32, the most elements a processor computes at once. Elements of a shorter
# rest round differently by an ulp, so parts end with a block, and servers make the bits that one
# server makes.
BLOCK = 16


def bounds(size: int, count: int) -> list[int]:
    """Return the starts of the parts of a vector, and its end, as even as whole blocks allow."""
    # with fewer blocks than parts, pairs, in which a float64 travels, or single elements
    unit = next((unit for unit in (BLOCK, 2) if size >= unit * count), 1)
    units, more = divmod(size // unit, count)
    starts = [unit * (units * part + min(part, more)) for part in range(count)]
    return [*starts, size]


def spans(size: int, count: int) -> list[slice]:
    return [slice(begin, end) for begin, end in pairwise(bounds(size, count))]
