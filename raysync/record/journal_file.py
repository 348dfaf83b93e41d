"""Read a journal line by line, in bounded memory whatever the file contains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

from raysync.config.bounded_file import open_plain
from raysync.errors import ConfigError

LONGEST_LINE_BYTES = 1 << 25  # an update of ten thousand workers has about one million


class JournalFile:
    """The text of a journal; a context manager, which closes the file."""

    def __init__(self, journal: Path, errors: str = "strict") -> None:
        """Open a `journal.jsonl`; `errors` says how to decode, as in `bytes.decode`.

        Raises `ConfigError` if it is no plain file.
        """
        self._file, self._errors = open_plain(journal), errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self.readline, "")

    def readline(self) -> str:
        """Return the next line with its line break; "" at the end of the file.

        Raises `ConfigError` if it is too long, and `UnicodeDecodeError` if it is no UTF-8.
        """
        return bounded_line(self._file).decode(errors=self._errors)


def bounded_line(file: BinaryIO) -> bytes:
    """Return the next line, b"" at the end of the file; raise `ConfigError` if it is too long."""
    line = file.readline(LONGEST_LINE_BYTES)
    if len(line) == LONGEST_LINE_BYTES:
        raise ConfigError(
            f"not a journal: a line of it has more than {LONGEST_LINE_BYTES:,} bytes."
        )
    return line
