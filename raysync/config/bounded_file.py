"""Read plain files within a bound of memory."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from pathlib import Path
from typing import BinaryIO

from raysync.errors import ConfigError

PACKED = ".gz"  # in small or capital letters
PARQUET = ".parquet"
TABLES = (".csv", ".tsv", PARQUET)  # may be in capital letters, and `.gz` may follow
KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def read_bytes(path: Path, limit: int) -> bytes:
    """Read the bytes of a plain file; `.gz` is unpacked.

    Args:
        limit: the most bytes, also after unpacking.

    Raises:
        ConfigError: the file is missing, unreadable, too large or not plain.
    """
    try:
        with open_plain(path) as file:
            if path.suffix.lower() == PACKED:
                with gzip.open(file) as unpacked:
                    data = unpacked.read(limit + 1)
            else:
                data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: cannot be unpacked ({error}).") from error
    if len(data) > limit:
        raise ConfigError(f"{path}: it has more than {limit / 1e6:,g} MB, the most that is read.")
    return data


def open_plain(path: Path) -> BinaryIO:
    """Open a plain file to read its bytes.

    Raises:
        OSError: it is missing or unreadable.
        ConfigError: it is not plain, or its name can be no file's.
    """
    try:
        # a pipe without a writer would hold up an ordinary open()
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115 - the caller closes it
    except ValueError as error:  # a name with a NUL, or with half a character
        raise ConfigError(f"{str(path)!r}: not a valid file name ({error}).") from error
    kind = stat.S_IFMT(os.fstat(file.fileno()).st_mode)
    if kind != stat.S_IFREG:
        file.close()
        what = KINDS.get(kind, "something else")
        raise ConfigError(f"{path}: it is {what}; a plain file is expected.")
    return file


def _without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def read_text(path: Path, limit: int) -> str:
    """Read a text in UTF-8 without its byte-order mark; raise `ConfigError` as `read_bytes`."""
    try:
        text = read_bytes(path, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: it is not UTF-8 text.") from error
    return text


def path_of(name: str | Path) -> Path:
    """Expand `~` in a user's path; raise `ConfigError` if there is no such user."""
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{name}: there is no such user here.") from error


def is_table(path: Path) -> bool:
    """Whether a file is called like a table."""
    return table_suffix(path) in TABLES


def table_suffix(path: Path) -> str:
    """Return the lower-case suffix of a file, without `.gz`."""
    return Path(path.name.lower().removesuffix(PACKED)).suffix
