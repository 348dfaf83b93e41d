"""The line that shows how trials under Ray Tune stand."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from raysync.cli.app import errors

if TYPE_CHECKING:
    from raysync.tuning.progress import SweepProgress


class TrialsLine:
    """A context manager: within, the line is on the terminal; without one, every tenth of the
    trials is a line of text.
    """

    def __init__(self, *, hidden: bool) -> None:
        """
        Args:
            hidden: Ray Tune prints its own table.
        """
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=errors, disable=hidden)
        self._line: TaskID | None = None
        self._count = self._before = self._told = 0

    def __enter__(self) -> TrialsLine:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def begin(self, what: str, count: int, before: int = 0) -> None:
        """Trials are next; the line of those before is gone.

        Args:
            what: they are.
            count: of all of them.
            before: how many of these an earlier call has brought to their end.
        """
        if self._line is not None:
            self._progress.remove_task(self._line)
        self._line = self._progress.add_task(what, total=count, facts="starting")
        self._count, self._before, self._told = count, before, 10 * before // count

    def say(self, text: str) -> None:
        """Above the line."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, status: SweepProgress) -> None:
        """How they stand now."""
        assert self._line is not None, "nothing has begun"
        done = self._before + status.done
        facts = f"{done} done, {status.running} running, {status.failed} failed"
        self._progress.update(self._line, completed=self._before + status.progress, facts=facts)
        tenths = 10 * done // self._count
        if not errors.is_terminal and self._told < tenths:
            self._told = tenths
            self.say(f"{facts} of {self._count}")
