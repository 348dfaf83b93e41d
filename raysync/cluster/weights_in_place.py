"""The weights of a worker, used where the server has published them, in place of a copy.

The parameters of a model are at one address for all of a run, also for what the model itself may
keep of them. So each pull maps the slot of the new weights at that address, in place of the slot
that was there. It is mapped privately: a model may write to its weights, as one that clips them
does, and then the system gives this process a page of its own in place of the one that others see,
until the next pull.

The driver lends the slot until it gives the worker other weights (`backend`), and the stamp of the
vector is compared before each step on it and after it: so a vector that is overwritten meanwhile is
an error and never a number.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysync.cluster.shared_memory import STAMP_BYTES, Handle, Mappings, segment_of

LEAST_BYTES = 4 * 2**20
"""The least size of a vector: a smaller one is copied in less time than its slot is mapped."""
MAP_FIXED = 0x10  # of Linux, on all processors that torch runs on
MADV_POPULATE_READ = 22  # since Linux 5.14
FAILED = ctypes.c_void_p(-1).value


class WeightsInPlace:
    """The weights that a worker has pulled, at an address that stays the same."""

    def __init__(self, mappings: Mappings, vector_bytes: int) -> None:
        """
        Args:
            mappings: those of this process.
            vector_bytes: the size of the weights.
        """
        self._mappings, self._vector_bytes = mappings, vector_bytes
        self._memory = mmap.mmap(
            -1, STAMP_BYTES + vector_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        numbers = np.frombuffer(self._memory, np.float32, offset=STAMP_BYTES)
        self._address = numbers.ctypes.data - STAMP_BYTES
        self._vector = torch.from_numpy(numbers)
        self._shown: Handle | None = None
        """The vector that is there."""

    def show(self, weights: Sequence[object]) -> Tensor | None:
        """Return published weights (P + Q,), which this process may write to, until the next call;
        None: they have to be copied.

        Args:
            weights: what has arrived.

        Raises:
            TornVector: they are not in their slot.
            OSError: the process that they belong to is gone.
        """
        self._shown = None
        [vector] = weights if len(weights) == 1 else [None]
        if not (isinstance(vector, Handle) and self._fits(vector)):
            return None
        self._mappings.check(vector)
        with segment_of(vector, os.O_RDONLY) as file:
            self._map(file, vector.slot)
        self._shown = vector
        return self._vector

    def check(self) -> None:
        """Check that the weights have stayed the same since they were shown.

        Raises:
            TornVector: they have not.
        """
        if self._shown is not None:
            self._mappings.check(self._shown)

    def _fits(self, vector: Handle) -> bool:
        is_whole = (vector.begin, vector.end) == (0, self._vector_bytes)
        return is_whole and vector.end >= LEAST_BYTES and vector.slot % mmap.PAGESIZE == 0

    def _map(self, file: int, begin: int) -> None:
        """Map a slot at the address of the weights, in place of what is there."""
        access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | MAP_FIXED
        if _mmap()(self._address, len(self._memory), access, kind, file, begin) == FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        with suppress(OSError):  # an older system, which finds each page when it is first read
            self._memory.madvise(MADV_POPULATE_READ)


@cache
def _mmap() -> Any:
    """Return the system's call, since Python's own has no address."""
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    number = ctypes.c_int
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, number, number, number, ctypes.c_long]
    return call
