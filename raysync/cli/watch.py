"""`raysync watch`: a run as it goes on, or as it went, in the terminal."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live as Screen
from rich.progress import Progress
from rich.text import Text

from raysync.cli.app import app, console
from raysync.cli.live import Live
from raysync.cli.picture import Picture
from raysync.errors import ConfigError
from raysync.record.event_text import EventText
from raysync.record.journal_tail import JournalTail
from raysync.record.measures import Measures
from raysync.record.reader import RunRecord, legible, load, measures_of
from raysync.record.run_status import RunStatus
from raysync.record.storage import Place, display_name, download, find, is_copy, is_uri, listdir
from raysync.record.uploader import COPY_EVERY_S

JOURNAL = "journal.jsonl"
POLL_S = 0.25
LINES = 2_000
"""Of the journal, read between two pictures: what takes some tenths of a second."""
QUIET_S = 20.0
"""A run that has written nothing for so long is said to be quiet: a step of a large model lasts
that long. Behind a URI it is twice the time between copies more."""
GIVEN_UP_S = 1800.0
"""After so long nobody waits for it any more: every deadline of a run, by default, has passed."""

Folder = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        show_default=False,
        help="Folder (or URI) of a run, or of several: then the one that began last.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Print how it stands now, and go.")]


@app.command()
def watch(run: Folder, once: Once = False) -> None:
    """Watch a run: progress, what each worker does and why, what was decided; of one that has
    ended, how it stood.
    """
    try:
        record = newest(run)
        with JournalTail(record.path / JOURNAL) as journal:
            Watching(record, journal, console).to_its_end(once=once)
    except OSError as error:
        if error.filename is None:  # not of a file: the reader of a pipe is gone
            raise
        raise ConfigError(f"{error.filename}: cannot be read ({error.strerror}).") from error


def newest(place: Place) -> RunRecord:
    """The record in a place, or, of several below it, the one that began last.

    Raises:
        ConfigError: there is none.
    """
    if is_uri(place):
        return load(_newest_behind(place))
    folder = Path(place)
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}:"
            f" {'that is a file, not a folder' if folder.exists() else 'there is no such folder'}."
        )
    if (folder / JOURNAL).is_file():
        return load(folder)
    begun = [path for path in folder.rglob("config.yaml") if (path.parent / JOURNAL).is_file()]
    if not begun:
        raise ConfigError(
            f"{folder}: neither the record of a run (no {JOURNAL} in it), nor a folder of such"
            " records."
        )
    return load(max(begun, key=lambda path: path.stat().st_mtime).parent)


def _newest_behind(uri: Place) -> Place:
    """A record's own URI, or, of several below it, that of the last: their names begin with
    a time.
    """
    if JOURNAL in listdir(uri):
        return uri
    records = find(uri, JOURNAL)
    if records:
        return max(records, key=lambda record: str(record).partition("?")[0].rpartition("/")[2])
    raise ConfigError(
        f"{uri}: neither the record of a run (no {JOURNAL} in it), nor a folder of such records."
    )


class Watching:
    """Reads a record and shows it, until the run has ended, was killed, or nobody waits for it any
    more.
    """

    def __init__(
        self,
        record: RunRecord,
        journal: JournalTail,
        shown_on: Console,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            record: to watch.
            journal: its own, from the beginning.
            shown_on: a terminal gets a picture that changes, anything else lines.
            sleep: waits so many seconds.
            now: seconds since 1970, as files' times are.
        """
        self._record, self._journal, self._console = record, journal, shown_on
        self._sleep, self._now = sleep, now
        behind = is_copy(record.path)
        self._poll_s, self._quiet_s = (
            (COPY_EVERY_S, QUIET_S + 2 * COPY_EVERY_S) if behind else (POLL_S, QUIET_S)
        )
        self._standing: RunStatus | None = None
        self._killed = False
        self._caught_up = True
        self._lost = ""

    def to_its_end(self, *, once: bool = False) -> None:
        """Show it; the last picture stays.

        Args:
            once: only how it stands now.
        """
        if once:
            for _ in self._news(once=True):
                pass
        elif self._console.is_terminal:
            self._on_a_terminal()
            return
        else:
            self._in_lines()
        self._console.print(self._picture())

    def _on_a_terminal(self) -> None:
        with Screen(console=self._console, auto_refresh=False) as screen:
            for _ in self._news():
                below = Text()  # an empty line, where the terminal writes ^C
                screen.update(Group(self._picture(self._console.height - 1), below), refresh=True)
            screen.update(self._picture(), refresh=True)

    def _in_lines(self) -> None:
        """What is rare, every tenth of the work, and, when the run becomes quiet, how it stands."""
        follow: Callable[[Measures], None] | None = None
        was_quiet = False
        for news in self._news():
            if self._standing is None:
                continue
            follow = follow or self._tenths()
            for each in news:
                if each.rare:
                    self._console.print(
                        f"{each.at:,.2f} s: {each.text}",
                        markup=False,
                        highlight=False,
                        soft_wrap=True,
                    )
            follow(self._standing.measures)
            if self._is_quiet and not was_quiet:
                self._console.print(self._picture())
            was_quiet = self._is_quiet

    def _tenths(self) -> Callable[[Measures], None]:
        progress = Progress(console=self._console, disable=True)
        lines = Live(progress, bool(self._about.get("tokens")), self._about.get("timing") == "only")
        return lines.follow(self._paradigm)

    def _news(self, *, once: bool = False) -> Iterator[list[EventText]]:
        """Read on as long as there may be more to come; yields what was told."""
        more, waits = True, False
        while more:
            gone = (
                self._writer_is_gone()
            )  # asked before reading: nothing comes after what is read then
            if waits:
                self._copy()
            with legible(self._record.path):
                lines = self._journal.take(LINES)
                if self._standing is None and self._journal.head is not None:
                    self._standing = RunStatus(measures_of(self._journal.head))
                news = [
                    each
                    for line in lines
                    if self._standing is not None
                    for each in self._standing.feed(line)
                ]
            ended = self._standing is not None and self._standing.measures.ended is not None
            waits = len(lines) < LINES
            self._caught_up = waits or ended
            self._killed = gone and not ended
            yield news
            more = not ended and not (waits and (once or gone or self._silence_s > GIVEN_UP_S))
            if more and waits:
                self._sleep(self._poll_s)

    def _copy(self) -> None:
        """What is behind a URI; where it cannot be reached, that is said, and tried again."""
        try:
            download(self._record.path)
            self._lost = ""
        except ConfigError as error:
            self._lost = f"{error} It is tried again."

    @cached_property
    def _paradigm(self) -> str:
        try:
            return str(self._about.get("paradigm_label") or self._record.config.paradigm.label)
        except ConfigError:  # of a class that is not to be had here, with a file that is gone
            return str(self._about.get("paradigm", "a run"))

    @property
    def _about(self) -> dict[str, Any]:
        return dict((self._journal.head or {}).get("about", {}))

    @property
    def _silence_s(self) -> float:
        """Since the journal was last written to."""
        return self._now() - (self._record.path / JOURNAL).stat().st_mtime

    @property
    def _is_quiet(self) -> bool:
        ended = self._standing is not None and self._standing.measures.ended is not None
        return (
            self._caught_up
            and not ended
            and bool(self._killed or self._lost or self._silence_s > self._quiet_s)
        )

    def _writer_is_gone(self) -> bool:
        """Whether it closed the record, or was a process of this machine and is not there
        any more.
        """
        if self._is_closed:
            return True
        try:
            where = self._record.environment
        except ConfigError:  # missing, or damaged
            return False
        pid = where.get("pid")
        if where.get("host") != platform.node() or pid is None or pid <= 0:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except (
            PermissionError,
            OverflowError,
        ):  # another user's: it is there; or no number of a process
            return False
        return False

    @property
    def _is_closed(self) -> bool:
        """Whether the run has left its summary, which is written after the last line of the
        journal.
        """
        return RunRecord(
            self._record.path
        ).complete  # asked anew each time: a record keeps what it has read

    def _picture(self, height: int | None = None) -> Group | Picture:
        if self._standing is None:
            return Group(
                Text(f"{display_name(self._record.path)}: nothing is written yet."),
                Text(self._remark(), "yellow"),
            )
        return Picture(self._standing, self._paradigm, self._about, self._remark(), height)

    def _remark(self) -> str:
        if not self._caught_up:
            return f"So it stood: of its journal, {self._journal.share:.0%} is read."
        if not self._is_quiet:
            return ""
        if self._lost:
            return self._lost
        if self._is_closed:
            return "The run was closed, but its journal has no closing line: it was cut off."
        quiet = f"Nothing has been written for {timedelta(seconds=round(self._silence_s))} hours"
        if self._killed:
            return f"{quiet}: the process that wrote it is gone, the run was killed."
        return (
            f"{quiet}{': it was killed, or it is stuck' if self._silence_s > GIVEN_UP_S else ''}."
        )
