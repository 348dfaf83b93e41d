"""Read a journal while it is written: a line counts once its line break is on disk."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from types import TracebackType

from raysync.config.bounded_file import open_plain
from raysync.core.journal import Decoder, Header, Line, read_header
from raysync.record.journal_file import bounded_line


class JournalTail:
    """Continues from its last position, and buffers only the beginning of an unfinished line."""

    def __init__(self, journal: Path) -> None:
        self.head: Header | None = None
        """None until it is on disk."""
        self._path = journal
        self._file = open_plain(journal)
        self._decoder = Decoder()
        self._unfinished = b""

    def __enter__(self) -> JournalTail:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def read(self, at_most: int) -> list[Line]:
        """Return at most so many complete lines; an empty list: it has caught up with the writer.

        Raises `ConfigError` if the file is no journal of this schema, or damaged.
        """
        texts = list(islice(iter(self._next_line, ""), at_most + (self.head is None)))
        if self.head is None and texts:
            self.head = read_header(texts.pop(0))
        return [self._decoder.decode(text) for text in texts]

    def _next_line(self) -> str:
        """Return the next line if it is complete, otherwise an empty text."""
        self._unfinished += bounded_line(self._file)
        if not self._unfinished.endswith(b"\n"):
            return ""
        text, self._unfinished = self._unfinished.decode("utf-8", errors="replace"), b""
        return text

    def reopen(self) -> None:
        """Read the journal that is now at this path from the beginning."""
        self._file.close()
        self.head, self._file = None, open_plain(self._path)
        self._decoder, self._unfinished = Decoder(), b""

    @property
    def is_replaced(self) -> bool:
        """Whether a resumed run has replaced the journal by a truncated one."""
        try:
            now, opened = self._path.stat(), os.fstat(self._file.fileno())
        except OSError:
            return False
        return now.st_ino != opened.st_ino or now.st_size < self._file.tell()

    @property
    def read_fraction(self) -> float:
        return self._file.tell() / max(1, os.fstat(self._file.fileno()).st_size)
