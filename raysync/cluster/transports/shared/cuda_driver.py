"""CUDA's driver library: it lends a GPU's memory to other processes, and needs no torch."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

SUCCESS = 0  # CUDA_SUCCESS of cuda.h
GPU_ID_BYTES, HANDLE_BYTES = 16, 64  # CUuuid, CUipcMemHandle


class IpcHandle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * HANDLE_BYTES),)


class CudaRefused(OSError):
    """A call of CUDA's driver failed."""


@cache
def library() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def ask(function: str, *arguments: Any) -> None:
    """Call a function of the driver.

    Raises:
        CudaRefused: it returns an error.
        OSError: this machine has no driver.
    """
    driver = library()
    call = getattr(driver, function, None)
    if call is None:
        raise CudaRefused(f"{function}: this driver does not have it")
    code = call(*arguments)
    if code != SUCCESS:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(name))
        raise CudaRefused(f"{function}: {(name.value or b'').decode() or f'error {code}'}")


def gpu_id(number: int) -> bytes:
    """Return the unique id of a GPU, or of a slice of one, that this process sees."""
    device, found = ctypes.c_int(), (ctypes.c_ubyte * GPU_ID_BYTES)()
    ask("cuDeviceGet", ctypes.byref(device), number)
    ask("cuDeviceGetUuid_v2", found, device)
    return bytes(found)


def number_of(gpu: bytes) -> int:
    """Return this process's number of a GPU.

    Raises:
        CudaRefused: this process does not see it, or there is another error.
    """
    ask("cuInit", 0)
    count = ctypes.c_int()
    ask("cuDeviceGetCount", ctypes.byref(count))
    for number in range(count.value):
        if gpu_id(number) == gpu:
            return number
    raise CudaRefused("it does not see the server's GPU")
