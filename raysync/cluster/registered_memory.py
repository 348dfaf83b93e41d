"""The memory of an actor that other actors read over Ray Direct Transport, and what it has taken.

To register memory takes long (2 GB as one region 11 ms, more as several), so it is done once for
each buffer of a run, when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from raysync.cluster import direct_transport
from raysync.cluster.direct_vectors import Buffer, Kept


class RegisteredMemory:
    """The buffers of one process, and the vectors that it keeps."""

    def __init__(
        self,
        register: Callable[[Tensor], None] = direct_transport.register,
        release: Callable[[Tensor], None] = direct_transport.release,
    ) -> None:
        """
        Args:
            register: lets others read a tensor's memory.
            release: takes that back.
        """
        self._register, self._release = register, release
        self._buffers: dict[int, Tensor] = {}
        self._kept: dict[int, Tensor] = {}
        self._device, self._is_pinned = "cpu", False

    def begin(self, device: str = "cpu", *, is_pinned: bool = False) -> None:
        """Forget all: a run begins.

        Args:
            device: where buffers are made, as torch names it.
            is_pinned: whether buffers of the CPU are filled from a GPU.
        """
        for vector in self._buffers.values():
            self._release(vector)
        self._buffers.clear()
        self._kept.clear()
        self._device, self._is_pinned = device, is_pinned

    def buffer(self, handle: Buffer) -> Tensor:
        """Return a buffer, (size,); it is made when it is first asked for."""
        if handle.number not in self._buffers:
            vector = torch.zeros(handle.size, device=self._device, pin_memory=self._is_pinned)
            self._register(vector)
            self._buffers[handle.number] = vector
        vector = self._buffers[handle.number]
        assert len(vector) == handle.size, "a buffer of another run"
        return vector

    def keep(self, number: int, vector: Tensor) -> None:
        """Keep a vector that has arrived, until it is freed."""
        assert number not in self._kept, "it was taken already"
        self._kept[number] = vector

    def read(self, handle: Buffer | Kept) -> Tensor:
        """Return a vector of this process, for reading only.

        Raises:
            KeyError: it was never taken, or has been freed.
        """
        if isinstance(handle, Buffer):
            return self.buffer(handle)
        return self._kept[handle.number]

    def free(self, numbers: Iterable[int]) -> None:
        """Forget vectors that nothing needs any more; those that never arrived are none.

        A GPU may not have come to reading them yet. Torch minds that when it gives their memory to
        what is computed next; the transport writes there at once.
        """
        if self._device != "cpu":
            torch.cuda.synchronize(self._device)
        for number in numbers:
            self._kept.pop(number, None)

    def __len__(self) -> int:
        """Return the number of vectors that are kept."""
        return len(self._kept)
