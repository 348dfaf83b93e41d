"""Vectors in memory that the processes of one node share: segments, slots and handles.

    segment     anonymous memory of the process that drives the run (`memfd_create`), which other
                processes of the same user map through `/proc`. It has no name, so no crash of any
                process leaves one: the kernel frees it with the last process that maps it. Nor does
                it take any of `/dev/shm`, whose size containers limit
    slot        room for one vector in a segment. All slots of a pool are written by one process,
                for all time the same one, and only the driver says which
    lease       the right to a slot: while anything holds it, nothing else is written there
    handle      what travels in place of the vector: where it is, and which one it is

The driver is the only one that allocates, so there is no lock and no count in shared memory: a slot
is free when the last lease of it is gone, exactly as an object in Ray's store is. A vector is there
once its handle has been returned by its writer. A process that dies while it writes never returns
one; a frozen one that goes on later writes into its own slots, which nobody else is ever given.

Each vector has a stamp, which is written behind it and tells it from all others that were ever in
that slot. A reader compares it with that of its handle: so a torn vector, or another version than
the one that was asked for, is an error and never a number.
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

STAMP_BYTES = 64
"""The room for a stamp in front of each vector: a cache line, which keeps vectors aligned."""
SEGMENT_BYTES = 4 * 2**20
"""The least size of a segment: small vectors share one."""
UNWRITTEN = 0
"""The stamp of a slot whose vector is being written."""
_STAMP = struct.Struct("<Q")


class TornVector(RuntimeError):
    """The vector of a handle is not in its slot: not yet, or not any more."""


class Handle(NamedTuple):
    """Where a vector is, or a part of it."""

    process: int
    """The process whose memory it is."""
    file: int
    """The number of its file there."""
    inode: int
    """The number of the segment, which no other has while this one exists."""
    slot: int
    """Where its slot begins in the segment, in bytes."""
    stamp: int
    begin: int
    """Where it begins, in bytes from the vector's first."""
    end: int

    def parts(self, sizes: Sequence[int], item_bytes: int = 4) -> list[Self]:
        """Return handles of parts of these sizes, in items, one behind the other."""
        starts = accumulate(sizes, initial=0)
        return [
            self._replace(begin=self.begin + item_bytes * first, end=self.begin + item_bytes * last)
            for first, last in pairwise(starts)
        ]


class Segment:
    """Anonymous memory, which takes room as it is first written."""

    def __init__(self, size: int) -> None:
        """
        Args:
            size: in bytes.

        Raises:
            OSError: this process has too many open files, or the machine too little memory.
        """
        self.file = os.memfd_create("raysync", os.MFD_CLOEXEC)
        os.ftruncate(self.file, size)
        self.inode = os.fstat(self.file).st_ino
        self.size = size

    def __del__(self) -> None:
        if hasattr(self, "file"):
            os.close(self.file)


class SlotLease:
    """The right to a slot, until it is dropped."""

    __slots__ = ("_pool", "_segment", "handle")

    def __init__(self, pool: Slots, segment: Segment, handle: Handle) -> None:
        self._pool, self._segment = pool, segment
        self.handle: Any = handle
        """Of the class that its slots were given."""

    def __del__(self) -> None:
        self._pool.give_back(self._segment, self.handle.slot)


class Slots:
    """The slots of one writing process, all of one size; there are as many as are held at once."""

    def __init__(
        self, vector_bytes: int, segment_bytes: int = SEGMENT_BYTES, kind: type[Handle] = Handle
    ) -> None:
        """
        Args:
            vector_bytes: the size of a vector.
            segment_bytes: the least size of a segment.
            kind: the class of the handles.
        """
        lines = -(-vector_bytes // STAMP_BYTES)
        self._vector_bytes, self._slot_bytes = vector_bytes, (1 + lines) * STAMP_BYTES
        self._segment_bytes, self._kind = segment_bytes, kind
        self._free: list[tuple[Segment, int]] = []
        self._stamp = UNWRITTEN
        self._is_closed = False
        self.segments: list[Segment] = []
        """All of them, until it is closed."""

    def take(self) -> SlotLease:
        """Return a free slot, the latest that was given back: its pages are in memory already.

        Raises:
            OSError: see `Segment`.
        """
        assert not self._is_closed, "the writer is gone"
        if not self._free:
            self._grow()
        segment, slot = self._free.pop()
        self._stamp += 1
        place = self._kind(
            os.getpid(), segment.file, segment.inode, slot, self._stamp, 0, self._vector_bytes
        )
        return SlotLease(self, segment, place)

    def give_back(self, segment: Segment, slot: int) -> None:
        """Take back a slot that nothing holds any more."""
        if not self._is_closed:
            self._free.append((segment, slot))

    def close(self) -> None:
        """Give no slot of this writer to anything again; what is held stays."""
        self._is_closed = True
        self._free.clear()
        self.segments.clear()

    def renewed(self) -> Slots:
        """Return slots in the same memory, all of them free: for the same writer, once nothing uses
        these any more, whatever is still held of them.
        """
        renewed = Slots(self._vector_bytes, self._segment_bytes, self._kind)
        renewed._stamp = self._stamp
        for segment in self.segments:
            renewed._add(segment)
        self.close()
        return renewed

    @property
    def is_closed(self) -> bool:
        """Whether its writer is gone."""
        return self._is_closed

    def _grow(self) -> None:
        count = max(1, self._segment_bytes // self._slot_bytes)
        self._add(Segment(count * self._slot_bytes))

    def _add(self, segment: Segment) -> None:
        self.segments.append(segment)
        begins = range(0, segment.size, self._slot_bytes)
        self._free += [(segment, begin) for begin in reversed(begins)]


class _Mapped(NamedTuple):
    """A segment that a process has mapped."""

    memory: mmap.mmap
    views: dict[tuple[int, int, int], Any]
    """Slot, begin and end -> the view of that part of a vector."""


class Mappings:
    """The segments that a process has mapped, and views of the vectors in them: each is made once,
    when its first handle comes. (To make a tensor of some bytes takes 10 us in a process that has
    slept, and there are several a step.)
    """

    def __init__(self, view: Callable[[memoryview], Any] = memoryview) -> None:
        """
        Args:
            view: makes of bytes what is read and written.
        """
        self._view = view
        self._maps: dict[tuple[int, int, int, bool], _Mapped] = {}

    def __len__(self) -> int:
        return len(self._maps)

    def read(self, handle: Handle) -> Any:
        """Return the view of a vector, for reading only.

        Raises:
            TornVector: it is not there.
            OSError: the process that it belongs to is gone, or is on another machine.
        """
        return self._view_of(self._checked(handle), handle)

    def check(self, handle: Handle) -> None:
        """Check that a vector is there.

        Raises:
            TornVector: it is not.
            OSError: see `read`.
        """
        self._checked(handle)

    def begin(self, handle: Handle) -> Any:
        """Return the view of the room for a vector that this process is about to write.

        Raises:
            OSError: see `read`.
        """
        mapped = self._mapped(handle, writes=True)
        _STAMP.pack_into(mapped.memory, handle.slot, UNWRITTEN)
        return self._view_of(mapped, handle)

    def finish(self, handle: Handle) -> None:
        """Stamp a vector that has been written."""
        _STAMP.pack_into(self._mapped(handle, writes=True).memory, handle.slot, handle.stamp)

    def forget_gone(self) -> None:
        """Forget the segments that their process has closed; their memory is unmapped once nothing
        refers to it.
        """
        for gone in list(self._gone()):
            del self._maps[gone]

    def _checked(self, handle: Handle) -> _Mapped:
        """Return the segment of a vector that is there."""
        mapped = self._mapped(handle, writes=False)
        (stamp,) = _STAMP.unpack_from(mapped.memory, handle.slot)
        if stamp != handle.stamp:
            raise TornVector(f"vector {handle.stamp} is not in its slot, but {stamp or 'none'} is")
        return mapped

    def _view_of(self, mapped: _Mapped, handle: Handle) -> Any:
        place = handle.slot, handle.begin, handle.end
        if place not in mapped.views:
            first = handle.slot + STAMP_BYTES
            data = memoryview(mapped.memory)[first + handle.begin : first + handle.end]
            mapped.views[place] = self._view(data)
        return mapped.views[place]

    def _mapped(self, handle: Handle, *, writes: bool) -> _Mapped:
        key = handle.process, handle.file, handle.inode, writes
        if key not in self._maps:
            self.forget_gone()
            self._maps[key] = _Mapped(_map(handle, writes), {})
        return self._maps[key]

    def _gone(self) -> Iterator[tuple[int, int, int, bool]]:
        """Yield the segments that their process has closed."""
        for key in self._maps:
            process, file, inode, _ = key
            try:
                exists = Path(_path(process, file)).stat().st_ino == inode
            except OSError:
                exists = False
            if not exists:
                yield key


def _map(handle: Handle, writes: bool) -> mmap.mmap:
    with segment_of(handle, os.O_RDWR if writes else os.O_RDONLY) as file:
        access = mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ
        return mmap.mmap(file, 0, access=access)


@contextmanager
def segment_of(handle: Handle, mode: int) -> Iterator[int]:
    """Give a file of this process for the segment that a vector is in.

    Args:
        handle: that of the vector.
        mode: `os.O_RDONLY` or `os.O_RDWR`.

    Raises:
        OSError: the process that it belongs to is gone, or is on another machine.
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
    """Say whether this system has memory that processes can share like this: Linux does."""
    return hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()
