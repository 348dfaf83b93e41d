"""The view of a run in `raysync watch`: progress, a table of the workers, the latest events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from math import inf
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raysync.cli.progress_lines import facts_of
from raysync.record.event_text import EventText, seconds
from raysync.record.measures import OF_LABELS
from raysync.record.run_status import RunStatus, WorkerRow

# columns of the workers' table, between the name and the state
NUMBERS = ("clock", "lead", "pushes", "wait", "stale-\nness", "\nmax")
# (width of a terminal, columns on narrower ones): the state, which says most, keeps its room
FEWER = ((60, ("wait",)), (100, ("clock", "lead", "wait", "stale-\nness")))
UNKNOWN = "-"
LONGEST_LEFT_S = 1e9  # a longer estimate is not shown: the run has just begun
FRAME_LINES = 5  # the table's lines beside the workers


@dataclass(frozen=True)
class Facts:
    """A line of facts, broken between two of them if it is too long."""

    facts: Sequence[str]
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = self.facts[0]
        for fact in self.facts[1:]:
            if cell_len(longer := f"{line} │ {fact}") <= options.max_width:
                line = longer
            else:
                yield Text(line, self.style)
                line = fact
        yield Text(line, self.style)


@dataclass(frozen=True)
class RunView:
    """The whole view, fitted to the terminal."""

    status: RunStatus
    paradigm: str  # the label in tables
    about: Mapping[str, Any]  # from the journal's header
    remark: str = ""  # set for a run that has become quiet, or is still being read
    # lines of the terminal: as many workers and events are shown as fit, a line each, so that
    # nothing jumps; None: all
    height: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head: list[RenderableType] = [
            Facts(title(self.paradigm, self.about), "bold"),
            _progress_line(self.status, self.about, is_quiet=bool(self.remark)),
            Facts(_facts(self.status, self.about)),
        ]
        if self.remark:
            head.append(Text(self.remark, "yellow"))
        yield from head
        names = next((names for columns, names in FEWER if options.max_width < columns), NUMBERS)
        events, rows = self.status.events, None
        if self.height is not None:
            events = events[-max(1, self.height // 3) :]
            above = sum(len(console.render_lines(part, options, pad=False)) for part in head)
            rows = max(2, self.height - above - FRAME_LINES - len(events))
        yield _workers_table(self.status, rows, names)
        yield _events_table(events, cut=self.height is not None)


def title(paradigm: str, about: Mapping[str, Any]) -> list[str]:
    """List the paradigm, the model and its data, the workers, the seed and the engine."""
    subject = [f"{about[key]}" for key in ("model", "dataset") if about.get(key)]
    more = [
        " on ".join(subject),
        *(f"{name} {about[name]}" for name in ("workers", "seed", "engine") if name in about),
    ]
    return [part for part in (paradigm, *more) if part]


def state_of(status: RunStatus, about: Mapping[str, Any], *, is_quiet: bool) -> str:
    """Describe the end of the run, or its time so far and the estimate of the rest."""
    measures = status.measures
    if measures.ended is not None:
        error = f": {measures.ended.error}" if measures.ended.error else ""
        how = f", {measures.end.how}" if measures.end.kind in ("reached", "cut") else ""
        return f"{measures.ended.status} after {seconds(measures.seconds)}{how}{error}"
    left, left_s = "", inf
    if measures.progress > 0:
        left_s = measures.seconds * (1 - measures.progress) / measures.progress
    # virtual seconds do not pass, and an estimate of 30 years is none
    if left_s < LONGEST_LEFT_S and about.get("engine") == "ray" and not is_quiet:
        left_s = max(0, round(left_s))
        left = f", about {f'{left_s} s' if left_s < 100 else timedelta(seconds=left_s)} left"
    return f"{seconds(measures.now)}{left}"


def _progress_line(status: RunStatus, about: Mapping[str, Any], *, is_quiet: bool) -> Table:
    measures = status.measures
    done = min(1.0, measures.progress)
    work = (
        f"{measures.samples:,} of {measures.workload_samples:,} samples,"
        f" {measures.updates:,} updates"
    )
    line = Table.grid(padding=(0, 1))
    line.add_row(
        ProgressBar(total=1.0, completed=done, width=20),
        Facts([f"{done:4.0%}", work, state_of(status, about, is_quiet=is_quiet)]),
    )
    return line


def _facts(status: RunStatus, about: Mapping[str, Any]) -> list[str]:
    measures, timing_only = status.measures, about.get("timing") == "only"
    facts = facts_of(measures, timing_only=timing_only).split(" │ ")
    unit = " nats" if measures.primary in OF_LABELS else ""
    losses = [f"{measures.evaluations[-1].loss:.3f}{unit}"] if measures.evaluations else []
    if status.batch_loss is not None:
        losses.append(f"of the last batch {status.batch_loss:.3f}")
    if losses and not timing_only:
        facts.append(f"loss {', '.join(losses)}")
    if measures.staleness_mean is not None:
        facts.append(f"staleness {measures.staleness_mean:.1f}, at most {measures.staleness_max}")
    facts.append(f"lead at most {measures.lead_max}")
    if status.phase:
        facts.append(f"under {status.phase}")
    return facts


def _workers_table(status: RunStatus, rows: int | None, names: Sequence[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    table.add_column("worker", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", ratio=1, no_wrap=rows is not None, overflow="ellipsis")
    workers = status.rows()
    count = len(workers) if rows is None or len(workers) <= rows else max(1, rows - 1)
    for row in islice(workers, count):
        numbers = _numbers(row)
        table.add_row(Text(row.worker), *(numbers[name] for name in names), Text(row.state))
    if count < len(workers):
        states = ", ".join(
            f"{number} {state}" for state, number in status.count_by_activity().items()
        )
        table.add_row(f"{len(workers) - count} more", *[""] * len(names), f"all: {states}")
    return table


def _numbers(row: WorkerRow) -> dict[str, str]:
    clock, lead = (UNKNOWN if value is None else f"{value:,}" for value in (row.clock, row.lead))
    mean = UNKNOWN if row.staleness_mean is None else f"{row.staleness_mean:.1f}"
    largest = UNKNOWN if row.staleness_mean is None else f"{row.staleness_max}"
    values = (clock, lead, f"{row.pushes:,}", f"{row.wait_fraction:.0%}", mean, largest)
    return dict(zip(NUMBERS, values, strict=True))


def _events_table(events: Sequence[EventText], *, cut: bool) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1, no_wrap=cut, overflow="ellipsis")
    for event in events:
        table.add_row(
            Text(f"{event.at:,.2f} s", "dim"), Text(event.text, "bold" if event.rare else "")
        )
    return table
