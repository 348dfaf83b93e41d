"""The table at the end of `run` and `compare`, narrow enough for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich import box, table as rich_table
from rich.markup import escape

from raysync.cli.console import console
from raysync.config import Experiment
from raysync.core.metrics import PrimaryMetric
from raysync.errors import visible
from raysync.results.collection import Criteria
from raysync.results.columns import TableRow, measures_for, shown
from raysync.results.grouping import workers_text
from raysync.results.sentences import describe_bottlenecks, describe_losses
from raysync.results.statistics import estimate
from raysync.results.tables import Table, statuses_text

if TYPE_CHECKING:
    from raysync.results.report_faces import Answer

Summaries = Mapping[str, Sequence[dict[str, Any] | None]]

NARROWEST = 7  # characters of a line of a heading


def print_answer(answer: Answer) -> None:
    """Print an answer: sentences, tables, and its basis."""
    for sentence in answer.sentences:
        console.print_plain(sentence)
    for table in answer.tables:
        print_rows(table)
    for sentence in (answer.legend, *answer.basis):
        console.print_plain(sentence)


def print_rows(table: Table, marks: Mapping[str, str] = {}) -> None:
    """Print the columns that a terminal has room for.

    Args:
        table: the table to print.
        marks: name of a row -> its mark in red; "": none.
    """
    columns = [column for column in table.columns if column.narrow is not None]
    headings = [
        column.narrow or fill(column.heading, NARROWEST, break_long_words=False)
        for column in columns
    ]
    printed = plain_table(escape(table.first), *map(escape, headings))
    for name, row in table.rows.items():
        mark = f" [red]{escape(marks[name])}[/red]" if marks.get(name) else ""
        cells = [escape(visible(column.cell(row, brief=True))) for column in columns]
        printed.add_row(escape(visible(name)) + mark, *cells)
    console.print(printed)


def print_results(
    rows: Summaries,
    experiment: Experiment,
    seeds: Sequence[int],
    metric: PrimaryMetric,
    answers: Iterable[str] = (),
) -> None:
    """Print the results of a session: a table, and sentences.

    Args:
        rows: paradigm -> the summary of each seed's run; None for a run that failed.
        metric: the measure of the models' quality.
        answers: which paradigm leads.
    """
    print_table(rows, experiment, seeds, metric)
    for label, summaries in rows.items():
        found = [run["error"] for run in summaries if run and run["status"] == "diverged"]
        if found:
            console.print_plain(f"{label}: diverged: {found[0]}.")
    for text in answers:
        console.print_plain(text)
    print_losses(rows, seeds)
    for text in describe_bottlenecks(rows):
        console.print_plain(text)


def print_table(
    rows: Summaries, experiment: Experiment, seeds: Sequence[int], metric: PrimaryMetric
) -> None:
    """Print a row for each paradigm: means over the seeds, with the interval of the results."""
    console.print(title(experiment, seeds), highlight=False, soft_wrap=True)
    table = table_of(rows, experiment, metric)
    marks = {}
    for label, summaries in rows.items():
        statuses = Counter(summary["status"] if summary else "failed" for summary in summaries)
        del statuses["finished"]
        marks[label] = statuses_text(statuses)
    print_rows(table, marks)


def table_of(rows: Summaries, experiment: Experiment, metric: PrimaryMetric) -> Table:
    """Return the table that `print_table` prints."""
    is_timed = experiment.timing == "only"
    criteria = Criteria(None, None) if is_timed else Criteria(metric, experiment.aim(metric))
    finished = [run for summaries in rows.values() for run in summaries if run]
    columns = measures_for(criteria.with_test_set(finished))
    values: dict[str, TableRow] = {
        label: {
            column.key: estimate([run.get(column.key) if run else None for run in summaries])
            for column in columns
        }
        for label, summaries in rows.items()
    }
    return Table("paradigm", shown(columns, values.values()), values)


def print_losses(rows: Summaries, seeds: Sequence[int]) -> None:
    """Print the unplanned losses of runs."""
    runs = (
        (label if len(seeds) == 1 else f"{label}, seed {seed}", summary)
        for label, summaries in rows.items()
        for seed, summary in zip(seeds, summaries, strict=True)
        if summary
    )
    for text in describe_losses(runs):
        console.print_plain(text)


def plain_table(first: str, *headings: str) -> rich_table.Table:
    """Create an empty table: names are folded if they are long, numbers are never cut."""
    table = rich_table.Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(first, overflow="fold", min_width=14)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def title(experiment: Experiment, seeds: Sequence[int]) -> str:
    """Describe the training, the workers and the seeds; with several, explain `±`."""
    repeats = f"seed {seeds[0]}"
    if len(seeds) > 1:
        repeats = f"mean ± half of the 95% interval over seeds {', '.join(map(str, seeds))}"
    return f"{experiment.subject}, workers {workers_text(experiment)}, {repeats}"
