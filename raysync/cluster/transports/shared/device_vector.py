"""The actor's side of vectors on a GPU that another process lends."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from raysync.cluster.transports.shared import cuda_driver as cuda
from raysync.cluster.transports.shared.segments import Mappings
from raysync.cluster.transports.transport import BETWEEN_RUNS

if TYPE_CHECKING:
    from raysync.cluster.transports.shared.shared_vector import SharedVector

LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is
TRIED = 1.5  # the number in the vector that is tried


class OpenedMemory:
    """Memory of another process on a GPU, open until nothing refers to it."""

    def __init__(self, gpu: bytes, handle: bytes, size: int) -> None:
        self._address = ctypes.c_uint64()  # 0: it is not open
        self.number = cuda.number_of(gpu)  # of the GPU
        opened, flag = cuda.IpcHandle.from_buffer_copy(handle), ctypes.c_uint(LAZY_PEER_ACCESS)
        with on(self.number):
            cuda.ask("cuIpcOpenMemHandle_v2", ctypes.byref(self._address), opened, flag)
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (self._address.value, False),
            "strides": None,
            "version": 3,
        }

    def __del__(self) -> None:
        if self._address.value:
            with suppress(OSError, RuntimeError), on(self.number):  # the process may be ending
                cuda.ask("cuIpcCloseMemHandle", self._address)


# CUDA opens a handle once a process.
_opened: WeakValueDictionary[bytes, OpenedMemory] = WeakValueDictionary()


class DeviceMap(mmap.mmap):
    """The stamps of a segment of a GPU, and its vectors."""

    def __init__(self, file: int, length: int, *, access: int) -> None:
        size = len(self) - cuda.GPU_ID_BYTES - cuda.HANDLE_BYTES
        gpu, handle = self[size : size + cuda.GPU_ID_BYTES], self[size + cuda.GPU_ID_BYTES :]
        memory = _opened.get(handle)
        if memory is None:
            memory = _opened[handle] = OpenedMemory(gpu, handle, size)
        self.vectors = tensor_of(memory)


@cache
def device_mappings() -> Mappings:
    """Return this process's mappings of segments on GPUs; the next run opens its own."""
    created = Mappings(
        view=lambda data: data.view(torch.float32),
        kind=DeviceMap,
        data=lambda mapped: mapped.vectors,
        await_written=lambda vector: await_gpu(vector),
    )
    # The controller frees memory only when nobody has it open.
    BETWEEN_RUNS.append(created.clear)
    return created


# ---- what torch does with a GPU ----


@contextmanager
def on(number: int) -> Iterator[None]:
    """Let this thread use torch's context of a GPU."""
    with torch.cuda.device(number):
        torch.cuda.synchronize()
        yield


def tensor_of(memory: OpenedMemory) -> Tensor:
    """Return the bytes of opened memory, which the tensor keeps open."""
    return torch.as_tensor(memory, device=f"cuda:{memory.number}")


def await_gpu(vector: Tensor) -> None:
    """Wait until a vector has been written."""
    torch.cuda.current_stream(vector.device).synchronize()


def gpu_here() -> bytes | str:
    """Return the unique id of the GPU on which the calling actor computes, or why it has none."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        return "torch sees no GPU of CUDA there"
    try:
        torch.cuda.synchronize()
        return cuda.gpu_id(torch.cuda.current_device())
    except (OSError, RuntimeError) as error:  # of torch, too
        return str(error)


def tried(vector: SharedVector, *, writes: bool) -> str:
    """Write or read a vector on a GPU; return why this process cannot, or ""."""
    try:
        if writes:
            with vector.writing() as written:
                written.fill_(TRIED)
        return "" if float(vector.read()) == TRIED else "it reads another number"
    except (OSError, RuntimeError) as error:  # of torch, too
        return str(error)
    finally:
        device_mappings().clear()
