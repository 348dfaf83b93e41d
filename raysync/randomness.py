"""Randomness without a state: a number is hashed from (seed, purpose, slot, clock).

So two paradigms meet the same batches and the same jitter whatever the order of their events, and a
run on Ray draws the same numbers as a run in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from statistics import NormalDist


def hashed_seed(seed: int, purpose: str, slot: str = "", clock: int = 0) -> int:
    """64 bits that depend on all four, for the generators of other libraries."""
    key = f"{seed}/{purpose}/{slot}/{clock}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


def uniform(seed: int, purpose: str, slot: str = "", clock: int = 0) -> float:
    """Draw from (0, 1), both ends excluded."""
    return ((hashed_seed(seed, purpose, slot, clock) >> 12) + 0.5) / 2**52


def uniform_of(seed: int, purpose: str, slot: str = "") -> Callable[[int], float]:
    """Return a function from a clock to what `uniform` draws: what all clocks share is hashed once,
    so that a draw takes half of the time.
    """
    begun = blake2b(f"{seed}/{purpose}/{slot}/".encode(), digest_size=8).copy
    from_bytes = int.from_bytes

    def draw(clock: int) -> float:
        key = begun()
        key.update(b"%d" % clock)
        return ((from_bytes(key.digest(), "big") >> 12) + 0.5) / 2**52

    return draw


def standard_normal(seed: int, purpose: str, slot: str = "", clock: int = 0) -> float:
    """Draw from the normal distribution with mean 0 and standard deviation 1."""
    return normal_at(uniform(seed, purpose, slot, clock))


normal_at = NormalDist().inv_cdf
"""The value that a normal variable with mean 0 and standard deviation 1 stays below with that
probability: what a uniform value is as a normal one."""
