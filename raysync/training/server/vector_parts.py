"""How a flat vector is split among the servers that share a model; no torch."""

from __future__ import annotations

from itertools import pairwise

BLOCK = 16
"""The elements that a processor computes at once, at most: a cache line of float32. What is left
at the end of a vector is computed one by one, and rounded differently by an ulp. So parts end where
a block does, and servers make the bits that one server makes."""


def bounds(size: int, count: int) -> list[int]:
    """Return where the parts of a vector begin, and its end: as even as whole blocks allow. Where
    there are fewer blocks than parts, as even as pairs allow, in which a float64 travels; and where
    there are fewer pairs, as even as elements allow.

    Args:
        size: its elements.
        count: the number of parts.
    """
    unit = next((unit for unit in (BLOCK, 2) if size >= unit * count), 1)
    each, more = divmod(size // unit, count)
    starts = [unit * (each * part + min(part, more)) for part in range(count)]
    return [*starts, size]


def spans(size: int, count: int) -> list[slice]:
    """Return the parts of a vector as slices."""
    return [slice(begin, end) for begin, end in pairwise(bounds(size, count))]
