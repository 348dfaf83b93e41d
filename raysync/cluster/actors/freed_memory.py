"""What becomes of memory that a process has freed.

A step takes memory for its activations and gradients, and frees it. glibc gives memory back to the
system when much is free, and the system clears every page anew when it is touched next. So a
process that computes gradients keeps what it has freed, as torch does with the memory of GPUs: for
a model of 25 linear layers of a million parameters each that saves 23,000 first touches a step, in
as much memory.

Blocks above a threshold are still given back when they are freed. It is not set higher, since glibc
leaves gaps behind some aligned blocks: up to eight of a size can come to lie side by side before
the first is used again.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

# The numbers of glibc's malloc.h:
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
NEVER = -1
"""With it, glibc gives nothing back by itself. (Any number of 32 bits would be a threshold: 2 GiB
at most.)"""
LARGE = 32 * 2**20
"""The bytes from which on a block is given back when it is freed: the most that glibc takes."""


def keep_freed_memory() -> bool:
    """Keep what this process frees from now on, for itself; return whether the C library can."""
    library = _glibc()
    return library is not None and bool(
        library.mallopt(M_MMAP_THRESHOLD, LARGE) and library.mallopt(M_TRIM_THRESHOLD, NEVER)
    )


def give_back_freed_memory() -> None:
    """Give what this process has freed so far back to the system."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> Any:
    """Return the C library of this process, if it is glibc."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
