"""A worker's weights, used where the server has published them, without a copy."""

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

from raysync.cluster.transports.shared.segments import (
    STAMP_BYTES,
    Handle,
    Mappings,
    is_supported,
    segment_of,
)

LEAST_BYTES = 4 * 2**20  # mapping a smaller vector takes as long as copying it
# Linux has these numbers on all processors that torch runs on:
MAP_FIXED = 0x10
MADV_POPULATE_READ = 22
FAILED = ctypes.c_void_p(-1).value


def is_large_enough(vector_bytes: int) -> bool:
    """Whether weights of that size are used in place, on a CPU."""
    return vector_bytes >= LEAST_BYTES and is_supported()


class WeightsInPlace:
    """The pulled weights of a worker, at a fixed address, also for models that keep views of them.

    Each pull maps the slot of the new weights there, privately: pages that a model writes to are
    copied, until the next pull. The driver leases the slot until the worker gets other weights. The
    stamp is compared before the steps and after each, so an overwritten vector is an error, never a
    number.
    """

    def __init__(self, mappings: Mappings, vector_bytes: int) -> None:
        self._mappings, self._vector_bytes = mappings, vector_bytes
        self._memory = mmap.mmap(
            -1, STAMP_BYTES + vector_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        numbers = np.frombuffer(self._memory, np.float32, offset=STAMP_BYTES)
        self._address = numbers.ctypes.data - STAMP_BYTES
        self.vector = torch.from_numpy(numbers)  # (P + Q,), to read and write
        self._shown: Handle | None = None  # the published vector mapped there

    def show(self, weights: Sequence[object]) -> bool:
        """Map arrived weights at `vector` until the next call; False: they have to be copied there.

        Raises:
            TornVector: they are not in their slot.
            OSError: the process that they belong to is gone.
        """
        self._shown = None
        handle = weights[0] if len(weights) == 1 else None
        if not (isinstance(handle, Handle) and self._fits(handle)):
            return False
        self._mappings.check(handle)
        with segment_of(handle, os.O_RDONLY) as file:
            self._map_slot(file, handle.slot)
        self._shown = handle
        return True

    def check(self) -> None:
        """Check that the weights are still in their slot.

        Raises:
            TornVector: they are not.
        """
        if self._shown is not None:
            self._mappings.check(self._shown)

    def _fits(self, handle: Handle) -> bool:
        is_whole = (handle.begin, handle.end) == (0, self._vector_bytes)
        return is_whole and handle.slot % mmap.PAGESIZE == 0

    def _map_slot(self, file: int, slot: int) -> None:
        access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | MAP_FIXED
        if _system_mmap()(self._address, len(self._memory), access, kind, file, slot) == FAILED:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        with suppress(OSError):  # unknown before Linux 5.14: pages fault when first read
            self._memory.madvise(MADV_POPULATE_READ)


@cache
def _system_mmap() -> Any:
    # Python's own `mmap` chooses the address.
    call = ctypes.CDLL(None, use_errno=True).mmap
    size, number = ctypes.c_size_t, ctypes.c_int
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, size, number, number, number, ctypes.c_long]
    return call
