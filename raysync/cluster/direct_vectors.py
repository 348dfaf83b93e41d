"""The gradients and weights of a run that travel by Ray Direct Transport: who writes where, when.

    buffer      registered memory of one process, a worker or the server, which another one reads
    kept        a gradient that the server has taken: its own copy, under a number, until it is
                freed
    room        the right to a buffer, or the existence of what is kept, until it is dropped

Ray holds such vectors by reference: if a buffer is overwritten while another process still reads
it, that one reads a mixture, and nothing shows it. So, as with shared memory, the driver alone says
what is written where, and a buffer is free only when the last room of it is gone: that of a
gradient when the server has answered that it has its copy, that of weights when every call that was
given them has been answered, and nothing else needs them.

This module knows neither Ray nor torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

TURNS = 2
"""The buffers for gradients that a worker has."""


class Buffer(NamedTuple):
    """A buffer of the process that a call is sent to."""

    number: int
    size: int
    """The number of its float32 elements."""

    def parts(self, sizes: Sequence[int]) -> list[Buffer]:
        """Return itself: a vector that travels so has one part."""
        assert list(sizes) == [self.size], "a server in shards"
        return [self]


class Kept(NamedTuple):
    """A gradient that the server has taken."""

    number: int


class Room:
    """What a vector takes up, until it is dropped."""

    __slots__ = ("_give_back", "handle")

    def __init__(self, handle: Buffer | Kept, give_back: Callable[[int], None]) -> None:
        """
        Args:
            handle: names it in calls.
            give_back: is told its number when nothing needs it any more.
        """
        self.handle, self._give_back = handle, give_back

    def __del__(self) -> None:
        self._give_back(self.handle.number)


class Buffers:
    """The buffers of one process, all of one size."""

    def __init__(self, size: int, most: int | None = None) -> None:
        """
        Args:
            size: the number of elements of each.
            most: how many there may be; None: as many as are held at once.
        """
        self._size, self._most = size, most
        self._free: list[int] = []
        self._is_closed = False
        self.count = 0
        """The number of buffers so far."""

    def take(self) -> Room:
        """Return the room of a free buffer, the latest that was given back."""
        assert not self._is_closed, "its process is gone"
        if not self._free:
            assert self.count != self._most, "a buffer is needed that is still being read"
            self._free.append(self.count)
            self.count += 1
        return Room(Buffer(self._free.pop(), self._size), self._give_back)

    def close(self) -> None:
        """Give no buffer to anything again: its process is gone."""
        self._is_closed = True

    def _give_back(self, number: int) -> None:
        self._free.append(number)


class DirectVectors:
    """The buffers of a run, and what its server keeps."""

    def __init__(self, pull: int, push: int) -> None:
        """
        Args:
            pull: the number of float32 elements of the weights with the buffers behind them.
            push: that of a gradient with these, in the format in which it travels.
        """
        self._push = push
        self._gradients: dict[str, Buffers] = {}
        """Worker -> its buffers."""
        self._weights = Buffers(pull)
        self._kept = 0
        """The number of gradients so far that the server was to take."""
        self._needless: list[int] = []
        """The numbers of those that nothing needs any more, and that the server still has."""

    def gradient(self, worker: str) -> Room:
        """Return the room for the next gradient of a worker."""
        if worker not in self._gradients:
            self._gradients[worker] = Buffers(self._push, TURNS)
        return self._gradients[worker].take()

    def weights(self) -> Room:
        """Return the room for the next weights that are published."""
        return self._weights.take()

    def kept(self) -> Room:
        """Return the room, on the server, of the next gradient."""
        self._kept += 1
        return Room(Kept(self._kept), self._needless.append)

    def needless(self) -> list[int]:
        """Return the numbers that the server is to be told to free, each once."""
        numbers, self._needless[:] = self._needless[:], []
        return numbers

    def forget(self, worker: str) -> None:
        """Forget a worker that is gone."""
        buffers = self._gradients.pop(worker, None)
        if buffers is not None:
            buffers.close()
