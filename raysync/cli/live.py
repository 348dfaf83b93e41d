"""What is seen while runs go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from raysync.cli.app import errors
from raysync.cli.table import perplexity_text, rate_text
from raysync.errors import ConfigError
from raysync.record.measures import Measures

SHOW_EVERY_S = 0.1
"""How often a progress line changes at most: some of its figures cost time in proportion to the
workers."""


class Live:
    """A progress line per run; where there is no terminal (the log of a job), a printed line per
    tenth and at the end.
    """

    def __init__(self, progress: Progress, tokens: bool, timing_only: bool = False) -> None:
        """
        Args:
            progress: draws the lines.
            tokens: of a language model: perplexity takes the place of accuracy.
            timing_only: nothing is learned, and nothing said of it.
        """
        self._progress = progress
        self._tokens = tokens
        self._timing_only = timing_only

    def say(self, text: str) -> None:
        """Print a sentence above the lines."""
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def follow(self, label: str) -> Callable[[Measures], None]:
        """A `watch` that keeps one line up to date."""
        task = self._progress.add_task(escape(label), total=1.0, facts="starting")
        is_terminal, tenths, shown_s = self._progress.console.is_terminal, 0, 0.0

        def watch(measures: Measures) -> None:
            nonlocal tenths, shown_s
            if measures.ended is None and time.monotonic() < shown_s + SHOW_EVERY_S:
                return
            shown_s = time.monotonic()
            facts = facts_of(measures, tokens=self._tokens, timing_only=self._timing_only)
            status = measures.ended.status if measures.ended else ""
            if status not in ("", "finished"):
                facts += f"  {status}"
            self._progress.update(task, completed=min(1.0, measures.progress), facts=facts)
            if not is_terminal and (status or tenths < int(10 * measures.progress) < 10):
                tenths = int(10 * min(1.0, measures.progress))
                self.say(f"{label} {10 * tenths}% │ {facts}")

        return watch


def facts_of(measures: Measures, *, tokens: bool, timing_only: bool) -> str:
    """How good the model is, how fast it learns, and how much of their time the workers wait."""
    pace = (
        f"{rate_text(measures.throughput_samples_per_s):>6} samples/s │ wait"
        f" {measures.wait_fraction:3.0%}"
    )
    if timing_only:
        return pace
    if tokens:
        return (
            "perplexity"
            f" {'-' if measures.perplexity is None else perplexity_text(measures.perplexity):>5} │"
            f" {pace}"
        )
    return (
        f"accuracy {'-' if measures.accuracy is None else f'{measures.accuracy:.1%}':>5} │ {pace}"
    )


@contextmanager
def live(tokens: bool, timing_only: bool = False) -> Iterator[Live]:
    """Progress lines below the log; see `Live`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=8),
        TextColumn("{task.percentage:3.0f}% │"),
        TextColumn("{task.fields[facts]}"),
    )
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        try:
            yield Live(progress, tokens, timing_only)
        except ConfigError:
            for task in progress.task_ids:  # nothing ran: the error's two lines say it all
                progress.remove_task(task)
            raise
