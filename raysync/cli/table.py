"""The table at the end of `run` and `compare`, narrow enough for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

from raysync.cli.console import console
from raysync.config import Experiment
from raysync.core.metrics import PrimaryMetric
from raysync.errors import visible
from raysync.results.collection import Criteria
from raysync.results.columns import (
    OF_EVERY_RUN,
    OF_LOSSES,
    WHOLE_WORK,
    Form,
    Measure,
    count_form,
    final_measure,
    time_measure,
    with_interval,
)
from raysync.results.grouping import workers_text

if TYPE_CHECKING:
    from raysync.results.report_faces import Answer


def seconds_form(value: float) -> str:
    """One decimal; below a second, two digits."""
    return ",.1f" if value >= 0.95 or not value else ".2g"


def rate_form(value: float) -> str:
    """Whole numbers; below ten a second, two digits."""
    return ",.0f" if value >= 9.95 or not value else ".2g"


def seconds_text(value: float) -> str:
    return format(value, seconds_form(value))


def rate_text(value: float) -> str:
    return format(value, rate_form(value))


# key of a measure -> its heading and form; the table has no other measures
NARROW: dict[str, tuple[str, Form]] = {
    "throughput_samples_per_s": ("samples\nper s", rate_form),
    "busy_fraction": ("com-\npute", lambda _: ".0%"),
    "transfer_fraction": ("trans-\nfer", lambda _: ".0%"),
    "server_fraction": ("server\nshare", lambda _: ".0%"),
    "wait_fraction": ("wait\nshare", lambda _: ".0%"),
    "staleness_mean": ("stale-\nness", lambda _: ".1f"),
    "staleness_max": ("\nmax", lambda _: ".0f"),
    "lead_max": ("lead\nmax", lambda _: ".0f"),
    "lost_workers": ("lost", count_form),
}
SHOWN_WITH = {
    "busy_fraction": ("transfer_fraction", "server_fraction"),
    "transfer_fraction": ("transfer_fraction",),
    "server_fraction": ("server_fraction",),
    "lost_workers": ("lost_workers",),
}
"""Key of a measure -> values, of which some run must have one for the measure to be shown.

Without transfer and server, computing is what waiting leaves.
"""
LEAST_SHARE = 0.005  # a smaller share is printed as 0%
NARROWEST = 7  # characters of a line of a heading


def print_answer(answer: Answer) -> None:
    """Print an answer: sentences, tables, and its basis."""
    for sentence in answer.sentences:
        console.print_plain(sentence)
    for table in answer.tables:
        columns = [column for column in table.columns if not column.only_in_pages]
        headings = (fill(column.heading, NARROWEST, break_long_words=False) for column in columns)
        printed = plain_table(escape(table.first), *map(escape, headings))
        for label, row in table.rows.items():
            cells = [label, *((column.brief or column.show)(row) for column in columns)]
            printed.add_row(*(escape(visible(cell)) for cell in cells))
        console.print(printed)
    for sentence in (answer.legend, *answer.basis):
        console.print_plain(sentence)


def print_table(
    rows: Mapping[str, Sequence[dict[str, Any] | None]],
    experiment: Experiment,
    seeds: Sequence[int],
    metric: PrimaryMetric,
) -> None:
    """Print a row for each paradigm: means over the seeds, with the interval of the results.

    Args:
        rows: paradigm -> the summary of each seed's run; None for a run that failed.
        metric: the measure of the models' quality.
    """
    results = result_columns(experiment, metric)
    others = [
        replace(measure, heading=NARROW[measure.key][0], form=NARROW[measure.key][1])
        for measure in (*OF_EVERY_RUN, *OF_LOSSES)
        if measure.key in NARROW and _is_informative(measure.key, rows)
    ]
    table = plain_table("paradigm", *(measure.heading for measure in (*results, *others)))
    for label, summaries in rows.items():
        bad = Counter(summary["status"] if summary else "failed" for summary in summaries)
        del bad["finished"]
        marks = [f"[red]{status} {count} of {len(seeds)}[/red]" for status, count in bad.items()]
        cells = [
            cell(
                [summary.get(measure.key) if summary else None for summary in summaries],
                measure.form,
                interval=measure in results,
            )
            for measure in (*results, *others)
        ]
        table.add_row(" ".join([escape(label), *marks]), *cells)
    console.print(title(experiment, seeds), highlight=False, soft_wrap=True)
    console.print(table)


def print_bottlenecks(rows: Mapping[str, Sequence[dict[str, Any] | None]]) -> None:
    """Print where the time of each paradigm went, by its first seed with a diagnosis."""
    from raysync.results.sentences import describe_bottlenecks  # slow: it imports the statistics

    for text in describe_bottlenecks(rows):
        console.print_plain(text)


def print_losses(rows: Mapping[str, Sequence[dict[str, Any] | None]], seeds: Sequence[int]) -> None:
    """Print the unplanned losses of runs."""
    from raysync.results.sentences import describe_losses

    runs = (
        (label if len(seeds) == 1 else f"{label}, seed {seed}", summary)
        for label, summaries in rows.items()
        for seed, summary in zip(seeds, summaries, strict=True)
        if summary
    )
    for text in describe_losses(runs):
        console.print_plain(text)


def print_divergences(rows: Mapping[str, Sequence[dict[str, Any] | None]]) -> None:
    """Print the first number that is not finite, of each paradigm's first run with one."""
    for label, summaries in rows.items():
        found = [run["error"] for run in summaries if run and run["status"] == "diverged"]
        if found:
            console.print_plain(f"{label}: diverged: {found[0]}.")


def plain_table(first: str, *headings: str) -> Table:
    """Create an empty table: names are folded if they are long, numbers are never cut."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(first, overflow="fold", min_width=14)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def result_columns(experiment: Experiment, metric: PrimaryMetric) -> list[Measure]:
    """Return the columns of the model's quality, and of the time to the target."""
    if experiment.timing == "only":
        return [replace(WHOLE_WORK, form=seconds_form)]
    criteria = Criteria(metric, experiment.aim(metric))
    final, time = final_measure(criteria), time_measure(criteria)
    assert final is not None, "a model was trained"
    if criteria.target is None:
        time = replace(time, key="time_to_target_s", heading="s to target")
    return [
        replace(final, heading=final.heading.replace(" ", "\n")),
        replace(time, heading=time.heading.replace("s to ", "s to\n"), form=seconds_form),
    ]


def _is_informative(key: str, rows: Mapping[str, Sequence[dict[str, Any] | None]]) -> bool:
    runs = [summary for summaries in rows.values() for summary in summaries if summary]
    shares = [summary.get(share) or 0.0 for summary in runs for share in SHOWN_WITH.get(key, ())]
    return key not in SHOWN_WITH or max(shares, default=0.0) >= LEAST_SHARE


def title(experiment: Experiment, seeds: Sequence[int]) -> str:
    """Describe the training, the workers and the seeds, and what `±` means with several."""
    repeats = f"seed {seeds[0]}"
    if len(seeds) > 1:
        repeats = f"mean ± half of the 95% interval over seeds {', '.join(map(str, seeds))}"
    return f"{experiment.subject}, workers {workers_text(experiment)}, {repeats}"


def cell(values: Sequence[float | None], form: Form, *, interval: bool) -> str:
    """Format the mean over the seeds, its interval, and how many have a value, if not all."""
    if len(values) == 1:
        return "-" if values[0] is None else format(values[0], form(values[0]))
    from raysync.results.statistics import estimate  # scipy is slow to import

    mean = estimate(values)
    if mean.mean is None:
        return "-"
    low, high = (mean.low, mean.high) if interval else (None, None)
    return with_interval(mean.mean, low, high, mean.count, mean.total, form)
