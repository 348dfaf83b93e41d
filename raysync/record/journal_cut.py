"""Cut a journal off behind a checkpoint, so that the run goes on from there."""

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
from raysync.core.events import Pushed
from raysync.core.journal import Checkpointed, Entry, Line, Remark, Resumed, decode, encode, read
from raysync.errors import ConfigError
from raysync.record.journal_file import JournalFile
from raysync.record.storage import completed

CUT = '{"type":"Checkpointed"'
"""How the line of a checkpoint begins: other lines of a long journal need not be decoded."""


@dataclass(frozen=True)
class Resumption:
    """How a record goes on."""

    checkpoint: Checkpoint
    environment: Mapping[str, Any]
    """The contents of `environment.json` when the run was lost."""
    exact: bool = False
    """Whether the iterations under way go on, in place of beginning again."""


def cut_of(text: str) -> Checkpointed | None:
    """Return what a line of a journal says of a checkpoint; None: it is another line, or was cut
    off.
    """
    if not text.startswith(CUT) or not text.endswith("\n"):
        return None
    line = decode(text)
    assert isinstance(line, Checkpointed), f"{CUT} begins {line}"
    return line


def cuts_in(journal: Path) -> dict[int, float]:
    """Return the checkpoints that a journal has a line of: number -> seconds since the run began.

    Raises:
        ConfigError: one of these lines is damaged.
    """
    with JournalFile(journal, errors="replace") as file:
        return {cut.number: cut.at for text in file if (cut := cut_of(text)) is not None}


def lines_before(journal: Path, checkpoint: Checkpoint) -> list[Line]:
    """Return the lines of a journal up to that of a checkpoint.

    Raises:
        OSError: it cannot be read.
        ConfigError: it is damaged.
    """
    with JournalFile(journal, errors="replace") as file:
        lines = takewhile(lambda line: line != cut_line(checkpoint), read(file)[1])
        return list(lines)


def came_to(journal: Path) -> float:
    """Return the latest moment, in seconds since the run began, that a run has ever come to, also
    where it went back from there.

    Raises:
        OSError: the journal cannot be read.
    """
    with JournalFile(journal, errors="replace") as file:
        return max(_moments(file), default=0.0)


def _moments(texts: Iterable[str]) -> Iterator[float]:
    for text in texts:
        with suppress(ConfigError):
            match decode(text):
                case Entry(event=event):
                    yield event.at
                case Resumed(at=at, lost_s=lost_s):
                    yield at + lost_s
                case Remark(at=at):
                    yield at


def cut_line(checkpoint: Checkpoint) -> Checkpointed:
    """Return the journal's line of a checkpoint."""
    return Checkpointed(checkpoint.at, checkpoint.number)


def _texts_before(journal: JournalFile, number: int) -> Iterator[str]:
    """Yield the text of the lines before that of a checkpoint.

    Raises:
        ConfigError: there is no line of that checkpoint.
    """
    while text := journal.readline():
        if (cut := cut_of(text)) is not None and cut.number == number:
            return
        yield text
    raise ConfigError(f"the journal has no line of checkpoint {number}.")


def cut_off(journal: Path, checkpoint: Checkpoint, *, exact: bool) -> Resumed:
    """Replace a journal by its part up to a checkpoint, and a line which says that the run is
    resumed. The old one stays until the new one is on disk.

    What was lost of earlier resumptions is only their time and place: they are told again.

    Args:
        journal: its path.
        checkpoint: what the run goes on from.
        exact: see `Resumed`.

    Returns:
        the new last line.

    Raises:
        OSError: it cannot be read or written.
        ConfigError: it has no line of that checkpoint.
    """
    away_s = max(0.0, datetime.now().timestamp() - journal.stat().st_mtime)
    with (
        completed(journal) as new,
        JournalFile(journal, errors="replace") as old,
        new.open("w", encoding="utf-8") as kept,
    ):
        kept.writelines(_texts_before(old, checkpoint.number))
        cut = cut_line(checkpoint)
        kept.write(f"{encode(cut)}\n")
        lost_s, lost_pushes, former = _lost(old, cut.at)
        resumed = Resumed(
            at=cut.at,
            number=cut.number,
            away_s=away_s,
            lost_s=lost_s,
            lost_pushes=lost_pushes,
            exact=exact,
        )
        again = [replace(each, at=cut.at, number=cut.number) for each in former]
        kept.writelines(f"{encode(line)}\n" for line in [*again, resumed])
        kept.flush()
        os.fsync(kept.fileno())
    return resumed


def _lost(texts: Iterable[str], since: float) -> tuple[float, int, list[Resumed]]:
    """Return the seconds and the pushes in the lines behind a cut, and the resumptions."""
    last_at, pushes, resumptions = since, 0, []
    for text in texts:
        with suppress(ConfigError):  # damage there is lost with it
            line = decode(text)
            if isinstance(line, Entry):
                last_at = max(last_at, line.event.at)
                pushes += isinstance(line.event, Pushed)
            elif isinstance(line, Remark):
                last_at = max(last_at, line.at)
            elif isinstance(line, Resumed):
                resumptions.append(line)
    return last_at - since, pushes, resumptions
