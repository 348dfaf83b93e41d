"""The parts of a flat vector for servers that share a model; no torch."""

from __future__ import annotations

from itertools import pairwise

BLOCK = 16
"""Elements of a cache line of float32, the most a processor computes at once. Rest elements are
computed one by one, and rounded differently by an ulp. So parts end with a block, and servers make
the bits that one server makes."""


def bounds(size: int, count: int) -> list[int]:
    """Return the starts of the parts of a vector, and its end, as even as whole blocks allow.

    With fewer blocks than parts, as even as pairs allow, in which a float64 travels; with fewer
    pairs, as even as elements allow.
    """
    unit = next((unit for unit in (BLOCK, 2) if size >= unit * count), 1)
    units, more = divmod(size // unit, count)
    starts = [unit * (units * part + min(part, more)) for part in range(count)]
    return [*starts, size]


def spans(size: int, count: int) -> list[slice]:
    return [slice(begin, end) for begin, end in pairwise(bounds(size, count))]
