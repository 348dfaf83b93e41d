"""`raysync watch`: show a run in the terminal, live or after its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.progress import Progress
from rich.text import Text

from raysync.cli.app import app
from raysync.cli.console import VisibleConsole, console
from raysync.cli.progress_lines import RunLines
from raysync.cli.run_view import RunView
from raysync.errors import ConfigError
from raysync.record.checkpoints import CHECKPOINTS
from raysync.record.event_text import EventText
from raysync.record.journal_file import JournalTail
from raysync.record.measures import Measures
from raysync.record.reader import RunRecord, legible, load, measures_of
from raysync.record.resumption import is_writer_gone
from raysync.record.run_status import RunStatus
from raysync.record.storage import (
    Location,
    display_name,
    download,
    find_folders,
    is_copy,
    is_uri,
    listdir,
)
from raysync.record.uploader import COPY_EVERY_S

JOURNAL = "journal.jsonl"
POLL_S = 0.25
LINES = 2_000  # journal lines between two updates of the view, which take tenths of a second
# a run is quiet after this silence, which a step of a large model can take; behind a URI, twice the
# time between uploads is added
QUIET_S = 20.0
# watching ends after this silence: by default, every deadline of a run has passed by then
GIVEN_UP_S = 1800.0

Folder = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        show_default=False,
        help="Run folder (or URI), or a folder of several runs, for the latest.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Print the current status, and exit.")]


@app.command()
def watch(run: Folder, once: Once = False) -> None:
    """Watch a run: its progress, its decisions, and what each worker does and why. If it has ended,
    show its last status.
    """
    try:
        record = newest(run)
        with JournalTail(record.path / JOURNAL) as journal:
            Watcher(record, journal, console).run(once=once)
    except OSError as error:
        if error.filename is None:  # not of a file: the reader of a pipe is gone
            raise
        raise ConfigError(f"{error.filename}: cannot be read ({error.strerror}).") from error


def newest(location: Location) -> RunRecord:
    """Return the record at a location, or the latest of several below it."""
    if is_uri(location):
        return load(_newest_uri(location))
    folder = Path(location)
    if folder.is_file():
        raise ConfigError(f"{folder}: this is a file, not a folder.")
    if not folder.is_dir():
        raise ConfigError(f"{folder}: there is no such folder.")
    if (folder / JOURNAL).is_file():
        return load(folder)
    configs = [
        path
        for path in folder.rglob("config.yaml")
        if (path.parent / JOURNAL).is_file()
        # a tracker puts a copy of a record into the record
        and not any((above / JOURNAL).is_file() for above in path.parent.parents)
    ]
    if not configs:
        raise ConfigError(
            f"{folder}: neither a run folder (no {JOURNAL} in it), nor a folder of runs."
        )
    return load(max(configs, key=_changed_at).parent)


def _changed_at(path: Path) -> float:
    """Return the time of a file's last change; long ago if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _newest_uri(uri: Location) -> Location:
    """Return the URI of a record, or of the latest below it."""
    if JOURNAL in listdir(uri):
        return uri
    records = find_folders(uri, JOURNAL)
    if records:
        # names of records begin with a time
        return max(records, key=lambda record: str(record).partition("?")[0].rpartition("/")[2])
    raise ConfigError(f"{uri}: neither a run folder (no {JOURNAL} in it), nor a folder of runs.")


class Watcher:
    """Shows a record until the run has ended, was killed, or was silent for `GIVEN_UP_S`."""

    def __init__(
        self,
        record: RunRecord,
        journal: JournalTail,
        console: VisibleConsole,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            journal: the record's journal, from the beginning.
            console: a terminal shows a view that changes, anything else gets lines.
            now: returns seconds since 1970, the clock of modification times.
        """
        self._record, self._journal, self._console = record, journal, console
        self._sleep, self._now = sleep, now
        is_remote = is_copy(record.path)
        self._poll_s = COPY_EVERY_S if is_remote else POLL_S
        self._quiet_s = QUIET_S + 2 * COPY_EVERY_S if is_remote else QUIET_S
        self._status: RunStatus | None = None  # until the journal's header is written
        self._is_killed = False
        self._has_caught_up = True
        self._download_error = ""  # empty: the latest download succeeded

    def run(self, *, once: bool = False) -> None:
        """Show the run until its end, or only its current status; the last view stays."""
        if self._console.is_terminal and not once:
            self._run_on_terminal()
            return
        if once:
            for _ in self._read(once=True):
                pass
        else:
            self._run_in_lines()
        self._console.print(self._view())

    def _run_on_terminal(self) -> None:
        with Live(console=self._console, auto_refresh=False) as screen:
            for _ in self._read():
                last_line = Text()  # empty, where the terminal writes ^C
                screen.update(Group(self._view(self._console.height - 1), last_line), refresh=True)
            screen.update(self._view(), refresh=True)

    def _run_in_lines(self) -> None:
        """Print rare events, every tenth of the work, and the view when the run becomes quiet."""
        was_quiet = False
        for events in self._read():
            if self._status is None:
                continue
            for event in events:
                if event.rare:
                    self._console.print_plain(f"{event.at:,.2f} s: {event.text}")
            self._print_tenths(self._status.measures)
            if self._is_quiet and not was_quiet:
                self._console.print(self._view())
            was_quiet = self._is_quiet

    @cached_property
    def _print_tenths(self) -> Callable[[Measures], None]:
        lines = RunLines(
            self._console,
            Progress(console=self._console, disable=True),
            timing_only=self._about.get("timing") == "only",
        )
        return lines.follow(self._paradigm)

    def _read(self, *, once: bool = False) -> Iterator[list[EventText]]:
        """Read until no more lines can arrive, and yield the events of each part."""
        is_reading, is_waiting = True, False
        while is_reading:
            # checked before reading, so that a writer that is gone has written all that is read
            is_gone = self._has_no_writer()
            if is_waiting:
                self._download()
                self._reopen_if_resumed()
            with legible(self._record.path):
                lines = self._journal.read(LINES)
                if self._status is None and self._journal.head is not None:
                    self._status = RunStatus(measures_of(self._journal.head))
                events = [
                    event
                    for line in lines
                    if self._status is not None
                    for event in self._status.feed(line)
                ]
            is_waiting = len(lines) < LINES
            self._has_caught_up = is_waiting or self._has_ended
            self._is_killed = is_gone and not self._has_ended
            yield events
            gives_up = is_waiting and (once or is_gone or self._silence_s > GIVEN_UP_S)
            is_reading = not self._has_ended and not gives_up
            if is_reading and is_waiting:
                self._sleep(self._poll_s)

    def _has_no_writer(self) -> bool:
        """Return whether the run was closed, or its writer's process on this machine is gone."""
        return self._is_closed or is_writer_gone(self._record) is True  # None: unknown

    def _download(self) -> None:
        """Update the copy of a URI; after a failure, the next call tries again."""
        try:
            download(self._record.path, without=[CHECKPOINTS])
            self._download_error = ""
        except ConfigError as error:
            self._download_error = f"{error} Trying again."

    def _reopen_if_resumed(self) -> None:
        """Read from the beginning if the journal was cut off and continues from a checkpoint."""
        if self._journal.is_replaced:
            self._journal.reopen()
            self._status = None
            self._record = RunRecord(self._record.path)

    @property
    def _has_ended(self) -> bool:
        return self._status is not None and self._status.measures.ended is not None

    @cached_property
    def _paradigm(self) -> str:
        try:
            return str(self._about.get("paradigm_label") or self._record.config.label)
        except ConfigError:  # the class cannot be imported on this machine, or the file is gone
            return str(self._about.get("paradigm", "a run"))

    @property
    def _about(self) -> dict[str, Any]:
        return {} if self._journal.head is None else dict(self._journal.head.about)

    @property
    def _silence_s(self) -> float:
        return self._now() - (self._record.path / JOURNAL).stat().st_mtime

    @property
    def _is_quiet(self) -> bool:
        if not self._has_caught_up or self._has_ended:
            return False
        return bool(self._is_killed or self._download_error or self._silence_s > self._quiet_s)

    @property
    def _is_closed(self) -> bool:
        """Whether the run has a summary, which follows the journal's last line."""
        return RunRecord(self._record.path).complete  # a new object: a record caches what it reads

    def _view(self, height: int | None = None) -> Group | RunView:
        if self._status is None:
            return Group(
                Text(f"{display_name(self._record.path)}: the run has written nothing yet."),
                Text(self._remark(), "yellow"),
            )
        return RunView(
            status=self._status,
            paradigm=self._paradigm,
            about=self._about,
            remark=self._remark(),
            height=height,
        )

    def _remark(self) -> str:
        if not self._has_caught_up:
            return f"Still loading: {self._journal.read_fraction:.0%} of the journal read."
        if not self._is_quiet:
            return ""
        if self._download_error:
            return self._download_error
        if self._is_closed:
            return "The run has ended, but its journal has no closing line: the file was truncated."
        silence = f"No output for {_duration(self._silence_s)}"
        if self._is_killed:
            return f"{silence}: the process of the run is gone, so the run was killed."
        if self._silence_s > GIVEN_UP_S:
            return f"{silence}: the run was killed, or it is stuck."
        return f"{silence}."


def _duration(seconds: float) -> str:
    """Format seconds as `20 s`, or from 100 s on as hours, minutes and seconds."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{timedelta(seconds=round(seconds))} h"
