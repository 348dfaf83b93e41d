"""The progress lines of runs, and of trials under Ray Tune."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from raysync.cli.console import VisibleConsole, errors
from raysync.errors import ConfigError
from raysync.record.measures import Measures
from raysync.results.columns import metric_text, ratio_text

if TYPE_CHECKING:
    from raysync.tuning.progress import SweepProgress

SHOW_EVERY_S = 0.1  # between updates of a line: some figures cost time for each worker


class RunLines:
    """A progress line for each run; without a terminal, printed at each tenth and at the end."""

    def __init__(
        self, console: VisibleConsole, progress: Progress, timing_only: bool = False
    ) -> None:
        """
        Args:
            console: prints without a terminal.
            progress: draws the lines on a terminal.
            timing_only: no model is trained, so none is described.
        """
        self._console = console
        self._progress = progress
        self._timing_only = timing_only

    def follow(self, label: str) -> Callable[[Measures], None]:
        """Add a line, and return a `watch` that updates it."""
        task = self._progress.add_task(escape(label), total=1.0, facts="starting")
        is_terminal, tenths, updated_s = self._console.is_terminal, 0, 0.0

        def watch(measures: Measures) -> None:
            nonlocal tenths, updated_s
            if measures.ended is None and time.monotonic() < updated_s + SHOW_EVERY_S:
                return
            updated_s = time.monotonic()
            facts = facts_of(measures, timing_only=self._timing_only)
            status = measures.ended.status if measures.ended else ""
            if status not in ("", "finished"):
                facts += f"  {status}"
            self._progress.update(task, completed=min(1.0, measures.progress), facts=facts)
            if not is_terminal and (status or tenths < int(10 * measures.progress) < 10):
                tenths = int(10 * min(1.0, measures.progress))
                self._console.print_plain(f"{label} {10 * tenths}% │ {facts}")

        return watch


def facts_of(measures: Measures, *, timing_only: bool) -> str:
    """Describe a run's quality, throughput and wait share."""
    rate = ratio_text(measures.throughput_samples_per_s)
    pace = f"{rate:>6} samples/s │ wait {measures.wait_fraction:3.0%}"
    if timing_only:
        return pace
    metric, quality = measures.primary.name, measures.quality
    value = "-" if quality is None else metric_text(metric, quality)
    return f"{metric} {value:>5} │ {pace}"


@contextmanager
def run_lines(timing_only: bool = False) -> Iterator[RunLines]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=8),
        TextColumn("{task.percentage:3.0f}% │"),
        TextColumn("{task.fields[facts]}"),
    )
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        try:
            yield RunLines(errors, progress, timing_only)
        except ConfigError:
            for task in progress.task_ids:  # nothing ran, and the error says everything
                progress.remove_task(task)
            raise


def transient_progress(*columns: ProgressColumn) -> Progress:
    """Create a progress line that a terminal shows until the work is done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )


class TrialsLine:
    """A progress line for a sweep's trials; without a terminal, printed at each tenth."""

    def __init__(self, *, hidden: bool) -> None:  # hidden: Ray Tune prints its own table
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
        self._count = self._before = self._tenths = 0

    def __enter__(self) -> TrialsLine:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, what: str, count: int, before: int = 0) -> None:
        """Show a new line instead of the one for earlier trials.

        Args:
            count: all trials.
            before: how many of these an earlier call has finished.
        """
        if self._line is not None:
            self._progress.remove_task(self._line)
        self._line = self._progress.add_task(what, total=count, facts="starting")
        self._count, self._before, self._tenths = count, before, 10 * before // count

    def show(self, status: SweepProgress) -> None:
        assert self._line is not None, "nothing has begun"
        done = self._before + status.done
        facts = f"{done} done, {status.running} running, {status.failed} failed"
        self._progress.update(self._line, completed=self._before + status.progress, facts=facts)
        tenths = 10 * done // self._count
        if not errors.is_terminal and self._tenths < tenths:
            self._tenths = tenths
            errors.print_plain(f"{facts} of {self._count}")
