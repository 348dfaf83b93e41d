"""Maps of shared memory that a GPU reads and writes directly."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import torch

from raysync.cluster.transports.shared.cuda_driver import SUCCESS, library

PORTABLE, READ_ONLY = 1, 8  # flags of CUDA's cuda.h


class RegisteredMap(mmap.mmap):
    """Registers itself with CUDA where its process computes on a GPU.

    torch takes what lies in it for pinned, so the GPU copies it without a second copy in between.
    Where CUDA refuses, it is copied like any other memory.
    """

    _address = 0  # 0: it is not registered

    def __init__(self, file: int, length: int, *, access: int) -> None:
        if (driver := cuda_driver()) is None:
            return
        address = np.frombuffer(self, np.uint8).ctypes.data
        flags = PORTABLE | (READ_ONLY if access == mmap.ACCESS_READ else 0)
        memory = ctypes.c_void_p(address), ctypes.c_size_t(len(self))
        # The driver's function: a refusal of the runtime's would be taken for that of a kernel.
        if driver.cuMemHostRegister_v2(*memory, ctypes.c_uint(flags)) == SUCCESS:
            self._address = address

    def __del__(self) -> None:  # before the memory is unmapped
        if self._address and (driver := cuda_driver()) is not None:
            driver.cuMemHostUnregister(ctypes.c_void_p(self._address))


def cuda_driver() -> Any:
    """Return CUDA's driver library; None: this process has not used a GPU of CUDA."""
    is_used = torch.version.cuda is not None and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return library() if is_used else None
