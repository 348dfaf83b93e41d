"""The memory that a process frees."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

# The numbers of glibc's malloc.h:
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
NEVER = -1  # no trimming; any number of 32 bits would be a threshold: 2 GiB at most
# Larger blocks are returned when freed. It is the most that glibc takes, and leaves gaps behind
# some aligned blocks: up to eight of a size can lie side by side before the first is reused.
LARGE = 32 * 2**20


def keep_freed_memory() -> bool:
    """Keep what this process frees from now on; False: the C library cannot.

    glibc returns freed memory to the system, which clears every page again at the next touch. So a
    process that computes gradients keeps it for its next steps, as torch does on GPUs.
    """
    library = _glibc()
    return library is not None and bool(
        library.mallopt(M_MMAP_THRESHOLD, LARGE) and library.mallopt(M_TRIM_THRESHOLD, NEVER)
    )


def give_back_freed_memory() -> None:
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> Any:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None
