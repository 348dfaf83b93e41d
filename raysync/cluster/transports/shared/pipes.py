"""Messages over pipes between the processes of one machine, in frames: a length, and a pickle.

`multiprocessing.Connection` is slower: it pickles in Python, and reads through a buffer.
"""

from __future__ import annotations

import os
from pickle import HIGHEST_PROTOCOL, dumps, loads
from struct import Struct
from typing import Any, NamedTuple

_LENGTH = Struct("<I")


class End(NamedTuple):
    """An end of a pipe, which any process of this user can open."""

    process: int  # the process that owns the file
    file: int  # its file descriptor there
    inode: int  # of the pipe: unique while it exists

    def open(self, mode: int) -> int:
        """Open it in this process, with `os.O_RDONLY` or `os.O_WRONLY`.

        Raises:
            OSError: the pipe, or the process that made it, is gone.
        """
        file = os.open(f"/proc/{self.process}/fd/{self.file}", mode)
        if os.fstat(file).st_ino != self.inode:
            os.close(file)
            raise FileNotFoundError(f"the pipe {self.inode} is gone")
        return file


def end_of(file: int) -> End:
    return End(os.getpid(), file, os.fstat(file).st_ino)


def frame(message: Any) -> bytes:
    data = dumps(message, HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def send(file: int, data: bytes) -> None:
    """Write a frame, blocking while the pipe is full.

    Raises:
        BrokenPipeError: the other end is closed.
    """
    written = os.write(file, data)
    while written < len(data):
        written += os.write(file, data[written:])


def receive(file: int) -> Any:
    """Block until a message arrives.

    Raises:
        EOFError: the other end is closed.
    """
    (length,) = _LENGTH.unpack(_read(file, _LENGTH.size))
    return loads(_read(file, length))


def _read(file: int, length: int) -> bytes:
    data = os.read(file, length)
    while len(data) < length:
        more = os.read(file, length - len(data))
        if not more:
            raise EOFError
        data += more
    return data
