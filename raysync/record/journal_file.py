"""Files of journals: read in bounded memory, followed while written, cut at a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace
from typing_extensions import override

from raysync.config.bounded_file import open_plain
from raysync.core.checkpoint import Checkpoint
from raysync.core.events import Left, Pushed
from raysync.core.journal import (
    ActorKind,
    Checkpointed,
    Decoder,
    Entry,
    Header,
    Line,
    Remark,
    Resumed,
    decode,
    encode,
    read,
    read_header,
)
from raysync.errors import ConfigError
from raysync.record.storage import completed

LONGEST_LINE_BYTES = 1 << 25  # an update of ten thousand workers has about one million
CHECKPOINTED = '{"type":"Checkpointed"'  # other lines need not be decoded


class JournalFile:
    """The text of a journal; a context manager, which closes the file."""

    def __init__(self, journal: Path, errors: str = "strict") -> None:
        """Open a `journal.jsonl`; `errors` says how to decode, as in `bytes.decode`.

        Raises `ConfigError` if it is no plain file.
        """
        self._path, self._errors = journal, errors
        self._file = open_plain(journal)

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
        return self._bytes_of_line().decode(errors=self._errors)

    def _bytes_of_line(self) -> bytes:
        line = self._file.readline(LONGEST_LINE_BYTES)
        if len(line) == LONGEST_LINE_BYTES:
            raise ConfigError(
                f"not a journal: a line of it has more than {LONGEST_LINE_BYTES:,} bytes."
            )
        return line


class JournalTail(JournalFile):
    """Continues from its last position: a line counts once its line break is on disk."""

    def __init__(self, journal: Path) -> None:
        super().__init__(journal, errors="replace")
        self.head: Header | None = None  # None until it is on disk
        self._decoder = Decoder()
        self._unfinished = b""

    def read(self, at_most: int) -> list[Line]:
        """Return at most so many complete lines; an empty list: it has caught up with the writer.

        Raises `ConfigError` if the file is no journal of this schema, or damaged.
        """
        texts = list(islice(self, at_most + (self.head is None)))
        if self.head is None and texts:
            self.head = read_header(texts.pop(0))
        return [self._decoder.decode(text) for text in texts]

    @override
    def readline(self) -> str:
        """Return the next line if it is complete, otherwise ""."""
        self._unfinished += self._bytes_of_line()
        if not self._unfinished.endswith(b"\n"):
            return ""
        text, self._unfinished = self._unfinished.decode(errors=self._errors), b""
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


@dataclass(frozen=True)
class Resumption:
    """A record's checkpoint to resume from."""

    checkpoint: Checkpoint
    environment: Mapping[str, Any]  # what `environment.json` held before the resumption
    exact: bool = False  # whether iterations in flight continue rather than begin again


def truncate(journal: Path, checkpoint: Checkpoint, *, exact: bool) -> Resumed:
    """Replace a journal, once the new one is on disk, by its part up to a checkpoint.

    A line `Resumed` is appended and returned. Earlier resumptions behind the checkpoint are
    repeated there, with its time.

    Raises:
        OSError: it cannot be read or written.
        ConfigError: it has no line of that checkpoint.
    """
    away_s = max(0.0, datetime.now().timestamp() - journal.stat().st_mtime)
    cut = checkpoint_line(checkpoint)
    with (
        completed(journal) as new,
        JournalFile(journal, errors="replace") as old,
        new.open("w", encoding="utf-8") as new_journal,
    ):
        new_journal.writelines(_texts_before(old, cut.number))
        new_journal.write(f"{encode(cut)}\n")
        resumptions = _resumptions(_undamaged(old), cut, away_s, exact=exact)
        new_journal.writelines(f"{encode(line)}\n" for line in resumptions)
        new_journal.flush()
        os.fsync(new_journal.fileno())
    return resumptions[-1]


def _texts_before(journal: JournalFile, number: int) -> Iterator[str]:
    """Yield the lines before a checkpoint's; raise `ConfigError` if it has none."""
    for text in journal:
        if (line := _checkpoint_in(text)) is not None and line.number == number:
            return
        yield text
    raise ConfigError(f"the journal has no line of checkpoint {number}.")


def _resumptions(
    lost_lines: Iterable[Line], cut: Checkpointed, away_s: float, *, exact: bool
) -> list[Resumed]:
    """Return the resumptions in lost lines, with the time of the cut, then the one that cuts."""
    last_at, pushes, lost, earlier = cut.at, 0, list[ActorKind](), list[Resumed]()
    for line in lost_lines:
        if isinstance(line, Entry):
            last_at = max(last_at, line.event.at)
            pushes += isinstance(line.event, Pushed)
            if isinstance(line.event, Left) and line.report.is_loss:
                lost.append("worker")
        elif isinstance(line, Remark):
            last_at = max(last_at, line.at)
            if line.lost is not None:
                lost.append(line.lost)
        elif isinstance(line, Resumed):
            earlier.append(replace(line, at=cut.at, number=cut.number))
    resumed = Resumed(
        at=cut.at,
        number=cut.number,
        away_s=away_s,
        lost_s=last_at - cut.at,
        lost_pushes=pushes,
        exact=exact,
        lost=tuple(lost),
    )
    return [*earlier, resumed]


def _undamaged(texts: Iterable[str]) -> Iterator[Line]:
    for text in texts:
        with suppress(ConfigError):
            yield decode(text)


def checkpoint_times(journal: Path) -> dict[int, float]:
    """Return number -> seconds since the run began, for each checkpoint in a journal."""
    with JournalFile(journal, errors="replace") as file:
        return {line.number: line.at for line in map(_checkpoint_in, file) if line is not None}


def lines_before(journal: Path, checkpoint: Checkpoint) -> list[Line]:
    """Return the lines of a journal before a checkpoint's line."""
    cut = checkpoint_line(checkpoint)
    with JournalFile(journal, errors="replace") as file:
        return list(takewhile(lambda line: line != cut, read(file)[1]))


def end_of(journal: Path) -> float:
    """Return the latest time in a journal, lost lines included, in seconds since the run began."""
    end = 0.0
    with JournalFile(journal, errors="replace") as file:
        for line in _undamaged(file):
            match line:
                case Entry(event=event):
                    end = max(end, event.at)
                case Resumed(at=at, lost_s=lost_s):
                    end = max(end, at + lost_s)
                case Remark(at=at):
                    end = max(end, at)
    return end


def _checkpoint_in(text: str) -> Checkpointed | None:
    """Decode a checkpoint's line; None: another line, or an incomplete one."""
    if not text.startswith(CHECKPOINTED) or not text.endswith("\n"):
        return None
    line = decode(text)
    assert isinstance(line, Checkpointed), f"{CHECKPOINTED} begins {line}"
    return line


def checkpoint_line(checkpoint: Checkpoint) -> Checkpointed:
    return Checkpointed(checkpoint.at, checkpoint.number)
