"""Rare garbage collections, while a run in virtual time makes objects by the million."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 100_000
"""The growth in objects after which the youngest of them are looked through.

Python's own 700 (2,000 from 3.13 on) suits objects that die soon. Here those of an iteration live
until its worker pushes, so that a look finds nearly all of them in use: with 10,000 workers this
took a sixth of the time of a run without gradients. Nothing that a run makes at each push may refer
to itself once it is done: so what is no longer used is freed at once all the same, and is not in
checkpoints, which have every call that is still there."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let Python look for garbage less often within the block."""
    before = gc.get_threshold()
    gc.set_threshold(OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
