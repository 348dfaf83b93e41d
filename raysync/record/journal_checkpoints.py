"""Truncate a journal behind a checkpoint, so that the run resumes from there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from raysync.core.checkpoint import Checkpoint
from raysync.core.events import Left, Pushed
from raysync.core.journal import (
    ActorKind,
    Checkpointed,
    Entry,
    Line,
    Remark,
    Resumed,
    decode,
    encode,
    read,
)
from raysync.errors import ConfigError
from raysync.record.journal_file import JournalFile
from raysync.record.storage import completed

CHECKPOINTED = '{"type":"Checkpointed"'  # other lines need not be decoded


@dataclass(frozen=True)
class Resumption:
    """A record's checkpoint to resume from."""

    checkpoint: Checkpoint
    environment: Mapping[str, Any]
    """What `environment.json` held before the resumption."""
    exact: bool = False
    """Whether iterations in flight continue rather than begin again."""


def truncate(journal: Path, checkpoint: Checkpoint, *, exact: bool) -> Resumed:
    """Replace a journal, once the new one is on disk, by its part up to a checkpoint.

    A line `Resumed` is appended and returned. Earlier resumptions behind the checkpoint are
    repeated there, with its time.

    Raises:
        OSError: it cannot be read or written.
        ConfigError: it has no line of that checkpoint.
    """
    away_s = max(0.0, datetime.now().timestamp() - journal.stat().st_mtime)
    with (
        completed(journal) as new,
        JournalFile(journal, errors="replace") as old,
        new.open("w", encoding="utf-8") as new_journal,
    ):
        new_journal.writelines(_texts_before(old, checkpoint.number))
        line = checkpoint_line(checkpoint)
        new_journal.write(f"{encode(line)}\n")
        lost_s, lost_pushes, lost, earlier = _losses(old, line.at)
        resumed = Resumed(
            at=line.at,
            number=line.number,
            away_s=away_s,
            lost_s=lost_s,
            lost_pushes=lost_pushes,
            exact=exact,
            lost=lost,
        )
        repeated = [replace(each, at=line.at, number=line.number) for each in earlier]
        new_journal.writelines(f"{encode(each)}\n" for each in [*repeated, resumed])
        new_journal.flush()
        os.fsync(new_journal.fileno())
    return resumed


def _texts_before(journal: JournalFile, number: int) -> Iterator[str]:
    """Yield the lines before a checkpoint's; raise `ConfigError` if it has none."""
    while text := journal.readline():
        if (line := checkpoint_in(text)) is not None and line.number == number:
            return
        yield text
    raise ConfigError(f"the journal has no line of checkpoint {number}.")


def _losses(
    texts: Iterable[str], since: float
) -> tuple[float, int, tuple[ActorKind, ...], list[Resumed]]:
    """Return the seconds, pushes, lost processes and resumptions behind a checkpoint."""
    last_at, pushes, lost, resumptions = since, 0, list[ActorKind](), list[Resumed]()
    for text in texts:
        with suppress(ConfigError):  # a damaged line is lost with the others
            line = decode(text)
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
                resumptions.append(line)
    return last_at - since, pushes, tuple(lost), resumptions


def checkpoint_times(journal: Path) -> dict[int, float]:
    """Return number -> seconds since the run began, for each checkpoint in a journal."""
    with JournalFile(journal, errors="replace") as file:
        return {line.number: line.at for text in file if (line := checkpoint_in(text)) is not None}


def lines_before(journal: Path, checkpoint: Checkpoint) -> list[Line]:
    """Return the lines of a journal before a checkpoint's line."""
    with JournalFile(journal, errors="replace") as file:
        lines = takewhile(lambda line: line != checkpoint_line(checkpoint), read(file)[1])
        return list(lines)


def end_of(journal: Path) -> float:
    """Return the latest time in a journal, lost lines included, in seconds since the run began."""
    with JournalFile(journal, errors="replace") as file:
        return max(_times(file), default=0.0)


def _times(texts: Iterable[str]) -> Iterator[float]:
    for text in texts:
        with suppress(ConfigError):
            match decode(text):
                case Entry(event=event):
                    yield event.at
                case Resumed(at=at, lost_s=lost_s):
                    yield at + lost_s
                case Remark(at=at):
                    yield at


def checkpoint_in(text: str) -> Checkpointed | None:
    """Decode a checkpoint's line; None: another line, or an incomplete one."""
    if not text.startswith(CHECKPOINTED) or not text.endswith("\n"):
        return None
    line = decode(text)
    assert isinstance(line, Checkpointed), f"{CHECKPOINTED} begins {line}"
    return line


def checkpoint_line(checkpoint: Checkpoint) -> Checkpointed:
    return Checkpointed(checkpoint.at, checkpoint.number)
