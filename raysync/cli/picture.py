"""The picture that `raysync watch` draws of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raysync.cli.live import facts_of
from raysync.record.news import News, seconds
from raysync.record.standing import Standing, WorkerRow

NUMBERS = ("clock", "lead", "pushes", "wait", "stale-\nness", "\nmax")
"""Columns of the table of workers, between their names and what they do."""
NEVER = "-"
OTHER_LINES = 11
"""Of a picture: all but workers and news, on a terminal of 100 columns."""


def picture(
    standing: Standing, paradigm: str, about: Mapping[str, Any], remark: str = "", height: int | None = None,
) -> Group:
    """All of it.

    Args:
        standing: of the run.
        paradigm: as tables call it.
        about: what the journal's header says of it.
        remark: of a run that has become quiet, what is to be said of that.
        height: of the terminal, in lines: workers and news take one each, and as many are shown as fit; None: everything.
    """
    parts: list[RenderableType] = [Text(title(paradigm, about), "bold"), _progress(standing, about, is_quiet=bool(remark)),
                                   Text(_facts(standing, about))]
    if remark:
        parts.append(Text(remark, "yellow"))
    news = standing.news if height is None else standing.news[-max(1, height // 3) :]
    rows = None if height is None else max(2, height - len(news) - OTHER_LINES)
    parts.append(_workers(standing, rows))
    if news:
        parts.append(_news(news, cut=height is not None))
    return Group(*parts)


def title(paradigm: str, about: Mapping[str, Any]) -> str:
    """Paradigm, what is trained, and by whom."""
    what = [f"{about[key]}" for key in ("model", "dataset") if key in about]
    more = [" on ".join(what), *(f"{name} {about[name]}" for name in ("workers", "seed", "engine") if name in about)]
    return " │ ".join(part for part in (paradigm, *more) if part)


def state_of(standing: Standing, about: Mapping[str, Any], *, is_quiet: bool) -> str:
    """How it has ended; or since when it goes on, and for how long yet."""
    measures = standing.measures
    if measures.ended is not None:
        error = f": {measures.ended.error}" if measures.ended.error else ""
        return f"{measures.ended.status} after {seconds(measures.seconds)}{error}"
    left = ""
    if measures.progress > 0 and about.get("engine") == "ray" and not is_quiet:  # nobody waits for virtual seconds
        left = f", about {seconds(measures.seconds * (1 - measures.progress) / measures.progress)} left"
    return f"{seconds(measures.now)}{left}"


def _progress(standing: Standing, about: Mapping[str, Any], *, is_quiet: bool) -> Table:
    measures = standing.measures
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(total=1.0, completed=min(1.0, measures.progress), width=20),
                 f"{min(1.0, measures.progress):4.0%} │ {measures.samples:,} of {measures.workload_samples:,} samples, "
                 f"{measures.updates:,} updates │ {state_of(standing, about, is_quiet=is_quiet)}")
    return line


def _facts(standing: Standing, about: Mapping[str, Any]) -> str:
    measures, timing_only = standing.measures, about.get("timing") == "only"
    facts = [facts_of(measures, tokens=bool(about.get("tokens")), timing_only=timing_only)]
    if measures.evaluations and not timing_only:
        facts.append(f"loss {measures.evaluations[-1].loss:.3f} nats")
    if standing.batch_loss is not None and not timing_only:
        facts.append(f"of the last batch {standing.batch_loss:.3f}")
    if measures.staleness_mean is not None:
        facts.append(f"staleness {measures.staleness_mean:.1f}, at most {measures.staleness_max}")
    facts.append(f"lead at most {measures.lead_max}")
    if standing.protocol:
        facts.append(f"under {standing.protocol}")
    return " │ ".join(facts)


def _workers(standing: Standing, rows: int | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, expand=True)
    table.add_column("worker", no_wrap=True)
    for name in NUMBERS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("state", ratio=1, no_wrap=rows is not None, overflow="ellipsis")
    everybody = standing.rows()
    shown = len(everybody) if rows is None or len(everybody) <= rows else max(1, rows - 1)
    for row in islice(everybody, shown):
        table.add_row(*map(Text, _cells(row)))
    if shown < len(everybody):
        doing = ", ".join(f"{count} {what}" for what, count in standing.doing().items())
        table.add_row(f"{len(everybody) - shown} more", *[""] * len(NUMBERS), f"of all: {doing}")
    return table


def _cells(row: WorkerRow) -> tuple[str, ...]:
    clock, lead = (NEVER if value is None else f"{value:,}" for value in (row.clock, row.lead))
    mean = NEVER if row.staleness_mean is None else f"{row.staleness_mean:.1f}"
    most = NEVER if row.staleness_mean is None else f"{row.staleness_max}"
    return row.worker, clock, lead, f"{row.pushes:,}", f"{row.wait_fraction:.0%}", mean, most, row.state


def _news(news: Sequence[News], *, cut: bool) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1, no_wrap=cut, overflow="ellipsis")
    for each in news:
        table.add_row(Text(f"{each.at:,.2f} s", "dim"), Text(each.text, "bold" if each.rare else ""))
    return table
