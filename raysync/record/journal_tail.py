"""A journal that is read while it is written.

The writer appends whole lines and flushes them in batches (`raysync.record.writer`), so what is on
disk ends anywhere: a line counts once its line break is there.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

from raysync.core.journal import Decoder, Line, read_header


class JournalTail:
    """Goes on where it stopped the last time. It keeps nothing but the beginning of an unfinished
    line.
    """

    def __init__(self, journal: Path) -> None:
        """
        Args:
            journal: `journal.jsonl` of a record.
        """
        self.head: dict[str, Any] | None = None
        """The header; None until it is on disk."""
        self._file = journal.open("rb")
        self._decoder = Decoder()
        self._begun = b""

    def __enter__(self) -> JournalTail:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    @property
    def share(self) -> float:
        """Of what is on disk, the part that has been read."""
        return self._file.tell() / max(1, os.fstat(self._file.fileno()).st_size)

    def take(self, at_most: int) -> list[Line]:
        """The next lines, as many as are there; none: it has caught up with the writer.

        Args:
            at_most: that many lines.

        Raises:
            ConfigError: no journal, one of another schema, or a damaged line.
        """
        texts = list(islice(iter(self._complete, ""), at_most + (self.head is None)))
        if self.head is None and texts:
            self.head = read_header(texts.pop(0))
        return [self._decoder.take(text) for text in texts]

    def _complete(self) -> str:
        """The next line, if it is complete; empty otherwise."""
        self._begun += self._file.readline()
        if not self._begun.endswith(b"\n"):
            return ""
        text, self._begun = self._begun.decode("utf-8", errors="replace"), b""
        return text
