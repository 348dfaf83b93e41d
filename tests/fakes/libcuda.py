"""CUDA's driver library with files in the place of a GPU's memory.

It refuses what CUDA leaves undefined: memory that is freed while this process has it open.
"""

import ctypes
import fcntl
import mmap
import os
import struct
from contextlib import contextmanager
from functools import cache
from itertools import count
from threading import local
from types import SimpleNamespace

import numpy as np
import ray
import torch
from torch import nn

from raysync.cluster.transports.shared import cuda_driver, device_memory, device_vector

GPU = b"the fake gpu's id"[:16]
ERRORS = {
    2: b"CUDA_ERROR_OUT_OF_MEMORY",
    46: b"CUDA_ERROR_DEVICE_UNAVAILABLE",
    801: b"CUDA_ERROR_NOT_SUPPORTED",
}
_HANDLE = struct.Struct("<QQ48x")  # process and file


class FakeLibcuda:
    """A process's driver, with one GPU.

    Args:
        refusals: name of a function -> the error that it returns.
        gpus: the ids of the GPUs that the process sees.
        missing: the names of functions that it lacks.
    """

    def __init__(self, total=2**34, refusals=(), gpus=(GPU,), missing=()):
        self.total, self.refusals, self.gpus, self.missing = total, dict(refusals), gpus, missing
        self.files, self.maps, self.opened = {}, {}, {}
        self.calls = []
        self._numbers, self._thread = count(), local()

    @property
    def used(self):
        return sum(os.fstat(file).st_size for file in self.files.values())

    def __getattr__(self, name):
        if not name.startswith("cu") or name in self.missing:
            raise AttributeError(name)

        def call(*arguments):
            self.calls.append(name)
            if error := self.refusals.get(name):
                return error
            return getattr(self, f"_{name.removesuffix('_v2')}")(*arguments) or 0

        return call

    def cuGetErrorName(self, code, name):  # noqa: N802
        name._obj.value = ERRORS[code]

    def _cuInit(self, flags): ...  # noqa: N802

    def _cuDeviceGetCount(self, number):  # noqa: N802
        number._obj.value = len(self.gpus)

    def _cuDeviceGet(self, device, number):  # noqa: N802
        device._obj.value = number

    def _cuDeviceGetUuid(self, found, device):  # noqa: N802
        found[:] = self.gpus[device.value]

    def _cuDevicePrimaryCtxRetain(self, context, number):  # noqa: N802
        context._obj.value = 1 + number

    def _cuCtxSetCurrent(self, context):  # noqa: N802
        self._thread.context = context.value

    @contextmanager
    def entered(self, number):
        """Give this thread a context, as torch does."""
        self._thread.context = 1 + number
        yield
        self._thread.context = 0

    def _check_context(self):
        assert getattr(self._thread, "context", 0), "this thread has no context"

    def _cuMemGetInfo(self, free, total):  # noqa: N802
        self._check_context()
        free._obj.value, total._obj.value = self.total - self.used, self.total

    def _cuMemAlloc(self, address, size):  # noqa: N802
        self._check_context()
        if size.value > self.total - self.used:
            return 2
        file = os.memfd_create("gpu")
        os.ftruncate(file, size.value)
        address._obj.value = 2**40 + next(self._numbers)  # the lender itself cannot touch it
        self.files[address._obj.value] = file
        return 0

    def _cuIpcGetMemHandle(self, handle, address):  # noqa: N802
        self._check_context()
        packed = _HANDLE.pack(os.getpid(), self.files[address.value])
        ctypes.memmove(ctypes.byref(handle._obj), packed, len(packed))

    def _cuMemFree(self, address):  # noqa: N802
        self._check_context()
        file = self.files.pop(address.value)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error while any process has it open
        os.close(file)

    def _cuIpcOpenMemHandle(self, address, handle, flag):  # noqa: N802
        assert flag.value == 1
        self._check_context()
        process, number = _HANDLE.unpack(bytes(handle))
        file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
        inode = os.fstat(file).st_ino
        assert inode not in self.opened.values(), "CUDA opens a handle once a process"
        fcntl.flock(file, fcntl.LOCK_SH)
        mapped = mmap.mmap(file, 0)
        address._obj.value = np.frombuffer(mapped, np.uint8).ctypes.data
        self.maps[address._obj.value], self.opened[address._obj.value] = (mapped, file), inode

    def _cuIpcCloseMemHandle(self, address):  # noqa: N802
        self._check_context()
        _, file = self.maps.pop(address.value)
        os.close(file)
        del self.opened[address.value]


def install(put=setattr, driver=None):
    """Let this process take files for a GPU's memory, and its CPU for the GPU."""
    driver = driver or FakeLibcuda()
    put(cuda_driver, "library", lambda: driver)
    put(device_vector, "on", driver.entered)
    put(device_vector, "await_gpu", lambda vector: None)
    put(device_vector, "tensor_of", _tensor_of)
    put(device_vector, "gpu_here", lambda: cuda_driver.gpu_id(0))
    put(device_memory, "LENT", {})
    return driver


def _tensor_of(memory):
    array = SimpleNamespace(__array_interface__=memory.__cuda_array_interface__, memory=memory)
    return torch.from_numpy(np.asarray(array))


class Installing(nn.Sequential):
    """A model of digits that installs the fake in each actor that it is sent to."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

    def __setstate__(self, state):
        super().__setstate__(state)
        if ray.is_initialized() and ray.get_runtime_context().get_actor_id():
            install_once()


@cache
def install_once():
    """Install the fake in an actor."""
    install()
