"""Stateless randomness, hashed from (seed, purpose, slot, clock)."""

from __future__ import annotations

from hashlib import blake2b
from statistics import NormalDist

_STANDARD_NORMAL = NormalDist()
_from_bytes = int.from_bytes


# Hashes give all paradigms and both engines the same batches and jitter, in any order of events.
def hashed_seed(seed: int, purpose: str, slot: str = "", clock: int = 0) -> int:
    """Return 64 bits, for the generators of other libraries."""
    key = f"{seed}/{purpose}/{slot}/{clock}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


def draw(seed: int, key: str) -> float:
    """Draw a number of (0, 1) for a paradigm's rule, a function of the seed and the key alone.

    Args:
        seed: `roster.seed`, of the run: so every seed draws others, and every replay the same.
        key: names the draw, such as `f"{worker}/{clock}"`; equal keys draw equal numbers.
    """
    return uniform(seed, "paradigm", key)


def uniform(seed: int, purpose: str, slot: str = "", clock: int = 0) -> float:
    """Draw from (0, 1), both ends excluded."""
    return ((hashed_seed(seed, purpose, slot, clock) >> 12) + 0.5) / 2**52


def hash_prefix(seed: int, purpose: str, slot: str = "") -> blake2b:
    """Return the hash prefix of (seed, purpose, slot), for `uniform_at`."""
    return blake2b(f"{seed}/{purpose}/{slot}/".encode(), digest_size=8)


def uniform_at(prefix: blake2b, clock: int) -> float:
    """Draw the number of `uniform`, faster where one prefix serves many clocks."""
    key = prefix.copy()
    key.update(b"%d" % clock)
    return ((_from_bytes(key.digest(), "big") >> 12) + 0.5) * 2.0**-52


def standard_normal(seed: int, purpose: str, slot: str = "", clock: int = 0) -> float:
    return _STANDARD_NORMAL.inv_cdf(uniform(seed, purpose, slot, clock))


def standard_normal_at(prefix: blake2b, clock: int) -> float:
    return _STANDARD_NORMAL.inv_cdf(uniform_at(prefix, clock))
