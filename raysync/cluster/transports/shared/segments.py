"""Vectors in memory that the processes of one node share.

The driver alone allocates, so shared memory has no lock and no counter: a slot is free when its
last lease is gone. A vector is valid once its writer has returned the handle.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

STAMP_BYTES = 64  # a cache line, which keeps vectors aligned
SEGMENT_BYTES = 4 * 2**20  # the least size of a segment: small vectors share one
UNWRITTEN = 0  # the stamp of a slot that is being written
_STAMP = struct.Struct("<Q")


class TornVector(RuntimeError):
    """The slot of a handle does not have its vector: not yet, or no longer."""


class Handle(NamedTuple):
    """The location of a vector, or of a part of one, and its stamp.

    A stamp, unique in its slot, is in front of each vector. Readers compare it with the handle's,
    so a torn vector or another version is an error and never a number.
    """

    process: int  # the process that owns the memory
    file: int  # its file descriptor there
    inode: int  # of the segment: unique while it exists
    slot: int  # the offset of its slot in the segment, in bytes
    stamp: int
    begin: int  # in bytes from the vector's first
    end: int
    on_gpu: bool = False  # see `device_memory`

    def parts(self, sizes: Sequence[int], item_bytes: int = 4) -> list[Self]:
        """Split into consecutive parts of these sizes, in items."""
        starts = accumulate(sizes, initial=0)
        return [
            self._replace(begin=self.begin + item_bytes * first, end=self.begin + item_bytes * last)
            for first, last in pairwise(starts)
        ]


class Segment:
    """Anonymous memory of the driver, which others of the same user map through `/proc`.

    It has no name, so a crash leaks nothing: the kernel frees it with the last process that maps
    it. It takes none of `/dev/shm`, whose size containers limit.
    """

    on_gpu = False  # where its vectors are

    def __init__(self, size: int) -> None:
        """
        Args:
            size: in bytes.

        Raises:
            OSError: too many open files, or too little memory.
        """
        self.file = os.memfd_create("raysync", os.MFD_CLOEXEC)
        os.ftruncate(self.file, size)
        self.inode = os.fstat(self.file).st_ino
        self.size = size

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)


class SlotLease:
    """The right to a slot, which is free once nothing refers to the lease."""

    __slots__ = ("_pool", "_segment", "handle")

    def __init__(self, pool: Slots, segment: Segment, handle: Handle) -> None:
        self._pool, self._segment = pool, segment
        self.handle: Any = handle  # of the class that `Slots` was given

    def __del__(self) -> None:
        self._pool.give_back(self._segment, self.handle.slot)


class Slots:
    """The slots of one writing process, each for one vector; more are made on demand.

    A process that dies while it writes returns no handle; a frozen one that continues later writes
    into its own slots, which no other process gets.
    """

    def __init__(
        self,
        vector_bytes: int,
        segment_bytes: int = SEGMENT_BYTES,
        kind: type[Handle] = Handle,
        memory: Callable[[int], Segment] = Segment,
    ) -> None:
        lines = -(-vector_bytes // STAMP_BYTES)
        self._vector_bytes, self._slot_bytes = vector_bytes, (1 + lines) * STAMP_BYTES
        self._segment_bytes, self._kind, self._memory = segment_bytes, kind, memory
        self._free: list[tuple[Segment, int]] = []
        self._stamp = UNWRITTEN
        self.leased = 0  # slots
        self.is_closed = False
        self.segments: list[Segment] = []

    def lease(self) -> SlotLease:
        """Lease the slot that was returned last: its pages are in memory already.

        Raises:
            OSError: see `Segment`.
        """
        assert not self.is_closed, "the writer is gone"
        if not self._free:
            self._grow()
        segment, slot = self._free.pop()
        self.leased += 1
        self._stamp += 1
        place = os.getpid(), segment.file, segment.inode, slot
        handle = self._kind(*place, self._stamp, 0, self._vector_bytes, segment.on_gpu)
        return SlotLease(self, segment, handle)

    def give_back(self, segment: Segment, slot: int) -> None:
        if not self.is_closed:
            self.leased -= 1
            self._free.append((segment, slot))

    def close(self) -> None:
        """Lease no slot of this writer again; leased ones stay valid."""
        self.is_closed = True
        self._free.clear()
        self.segments.clear()

    def renew(self) -> Slots:
        """Recreate the slots in the same memory, all free, once nothing uses the old leases."""
        slots = Slots(self._vector_bytes, self._segment_bytes, self._kind, self._memory)
        slots._stamp = self._stamp
        for segment in self.segments:
            slots._add(segment)
        self.close()
        return slots

    def _grow(self) -> None:
        count = max(1, self._segment_bytes // self._slot_bytes)
        self._add(self._memory(count * self._slot_bytes))

    def _add(self, segment: Segment) -> None:
        self.segments.append(segment)
        begins = range(0, segment.size, self._slot_bytes)
        self._free += [(segment, begin) for begin in reversed(begins)]


class _MappedSegment(NamedTuple):
    """A segment mapped by this process."""

    memory: mmap.mmap
    data: Any  # the bytes of its vectors, each behind the place of its stamp
    # (slot, begin, end) -> the view of that part of a vector
    views: dict[tuple[int, int, int], Any]


class Mappings:
    """The segments mapped by this process, with cached views: creating a tensor is slow."""

    def __init__(
        self,
        view: Callable[[Any], Any] = memoryview,
        kind: type[mmap.mmap] = mmap.mmap,
        data: Callable[[Any], Any] = memoryview,  # of a mapped segment
        await_written: Callable[[Any], None] = lambda vector: None,
    ) -> None:
        self._view, self._kind, self._data, self._await_written = view, kind, data, await_written
        # (process, file, inode, whether it is writable) -> the segment
        self._segments: dict[tuple[int, int, int, bool], _MappedSegment] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def read(self, handle: Handle) -> Any:
        """Return the read-only view of a vector.

        Raises:
            TornVector: it is not there.
            OSError: the owning process is gone, or is on another machine.
        """
        return self._view_of(self._checked_segment(handle), handle)

    def check(self, handle: Handle) -> None:
        """Check that a vector is there; raises like `read`."""
        self._checked_segment(handle)

    def begin_write(self, handle: Handle) -> Any:
        """Return the view of a slot that this process is about to write.

        Raises:
            OSError: see `read`.
        """
        segment = self._segment(handle, writes=True)
        _STAMP.pack_into(segment.memory, handle.slot, UNWRITTEN)
        return self._view_of(segment, handle)

    def finish_write(self, handle: Handle) -> None:
        """Stamp a vector that has been written."""
        segment = self._segment(handle, writes=True)
        self._await_written(self._view_of(segment, handle))
        _STAMP.pack_into(segment.memory, handle.slot, handle.stamp)

    def drop_closed(self) -> None:
        """Drop segments closed by their owner; memory is unmapped once nothing refers to it."""
        for key in list(self._closed_segments()):
            del self._segments[key]

    def clear(self) -> None:
        self._segments.clear()

    def _checked_segment(self, handle: Handle) -> _MappedSegment:
        segment = self._segment(handle, writes=False)
        (stamp,) = _STAMP.unpack_from(segment.memory, handle.slot)
        if stamp != handle.stamp:
            raise TornVector(f"vector {handle.stamp} is not in its slot, but {stamp or 'none'} is")
        return segment

    def _view_of(self, segment: _MappedSegment, handle: Handle) -> Any:
        place = handle.slot, handle.begin, handle.end
        if place not in segment.views:
            first = handle.slot + STAMP_BYTES
            data = segment.data[first + handle.begin : first + handle.end]
            segment.views[place] = self._view(data)
        return segment.views[place]

    def _segment(self, handle: Handle, *, writes: bool) -> _MappedSegment:
        key = handle.process, handle.file, handle.inode, writes
        if key not in self._segments:
            self.drop_closed()
            with segment_of(handle, os.O_RDWR if writes else os.O_RDONLY) as file:
                access = mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ
                mapped = self._kind(file, 0, access=access)
                self._segments[key] = _MappedSegment(mapped, self._data(mapped), {})
        return self._segments[key]

    def _closed_segments(self) -> Iterator[tuple[int, int, int, bool]]:
        for key in self._segments:
            process, file, inode, _ = key
            try:
                exists = Path(_path(process, file)).stat().st_ino == inode
            except OSError:
                exists = False
            if not exists:
                yield key


@contextmanager
def segment_of(handle: Handle, mode: int) -> Iterator[int]:
    """Open the segment of a handle in this process.

    Raises:
        OSError: the owning process is gone, or is on another machine.
    """
    file = os.open(_path(handle.process, handle.file), mode)
    try:
        if os.fstat(file).st_ino != handle.inode:
            raise FileNotFoundError("a segment of shared memory is gone")
        yield file
    finally:
        os.close(file)


def _path(process: int, file: int) -> str:
    return f"/proc/{process}/fd/{file}"


def is_supported() -> bool:
    """Whether this system can share anonymous memory through `/proc`: Linux can."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()
