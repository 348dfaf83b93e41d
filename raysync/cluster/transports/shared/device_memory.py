"""Segments in the memory of a GPU, which the controller lends to the processes of its node."""

from __future__ import annotations

import ctypes
import os
from functools import partial

from raysync.cluster.transports.shared import cuda_driver as cuda
from raysync.cluster.transports.shared.segments import Segment, SlotLease, Slots
from raysync.cluster.transports.shared.shared_vector import SharedVector
from raysync.cluster.transports.transport import BETWEEN_RUNS, MIB

PIECE_BYTES = 2 * MIB  # CUDA's smallest piece: smaller memory shares one, and so its handle


class LentGpu:
    """A GPU whose memory this process lends: its segments outlive every worker and server."""

    def __init__(self, gpu: bytes) -> None:
        """
        Args:
            gpu: its unique id.

        Raises:
            OSError: this process does not see it, or may not use it beside others.
        """
        self.id = gpu
        self._context = ctypes.c_void_p()
        cuda.ask("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), cuda.number_of(gpu))
        self._sizes: dict[int, int] = {}  # address -> bytes, of all that is not freed
        self._retired: list[int] = []  # addresses

    @property
    def available_bytes(self) -> int:
        """The memory for the next run, which uses again, or frees, what the last one had."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._enter()
        cuda.ask("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value + sum(self._sizes.values())

    def allocate(self, size: int) -> tuple[int, bytes]:
        """Return the address of new memory, and the handle with which other processes open it."""
        address, handle = ctypes.c_uint64(), cuda.IpcHandle()
        self._enter()
        cuda.ask("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self._sizes[address.value] = size
        try:
            cuda.ask("cuIpcGetMemHandle", ctypes.byref(handle), address)
        except OSError:
            self.retire(address.value)
            raise
        return address.value, bytes(handle)

    def retire(self, address: int) -> None:
        """Free memory before the next run: an actor may still have it open."""
        self._retired.append(address)

    def free_retired(self) -> None:
        """Free what was retired, once all actors have closed it."""
        if self._retired:
            self._enter()
        while self._retired:
            address = self._retired.pop()
            del self._sizes[address]
            cuda.ask("cuMemFree_v2", ctypes.c_uint64(address))

    def _enter(self) -> None:  # a context is a thread's
        cuda.ask("cuCtxSetCurrent", self._context)


LENT: dict[bytes, LentGpu] = {}  # by their ids


def lent(gpu: bytes) -> LentGpu:
    if gpu not in LENT:
        LENT[gpu] = LentGpu(gpu)
    return LENT[gpu]


def free_retired() -> None:
    for gpu in LENT.values():
        gpu.free_retired()


BETWEEN_RUNS.append(free_retired)


class DeviceSegment(Segment):
    """The vectors of a segment on a GPU; the file has their stamps, where they are in others.

    The file takes memory for its stamps only: the places of the vectors are never touched.
    """

    on_gpu = True

    def __init__(self, size: int, gpu: LentGpu) -> None:
        """
        Raises:
            OSError: the GPU has too little memory, or see `Segment`.
        """
        super().__init__(size + cuda.GPU_ID_BYTES + cuda.HANDLE_BYTES)
        self.size, self._gpu = size, gpu
        self._address, handle = gpu.allocate(-(-size // PIECE_BYTES) * PIECE_BYTES)
        os.pwrite(self.file, gpu.id + handle, size)

    def __del__(self) -> None:
        if hasattr(self, "_address"):
            self._gpu.retire(self._address)
        super().__del__()


def device_slots(vector_bytes: int, gpu: bytes) -> Slots:
    return Slots(vector_bytes, kind=SharedVector, memory=partial(DeviceSegment, gpu=lent(gpu)))


_offered: list[SlotLease] = []  # the latest


def offer(gpu: bytes, needed_bytes: int) -> SharedVector | str:
    """Return a vector on a GPU, for others to try, or why this process cannot lend its memory."""
    _offered.clear()
    try:
        available = lent(gpu).available_bytes
        _offered.append(device_slots(ctypes.sizeof(ctypes.c_float), gpu).lease())
    except OSError as error:
        return f"the controller: {error}"
    if needed_bytes > available:
        return (
            f"up to {needed_bytes / MIB:,.0f} MiB of its memory are needed, and"
            f" {available / MIB:,.0f} MiB are free (a smaller cluster.server_log_bytes needs less)"
        )
    return _offered[0].handle  # type: ignore[no-any-return]
