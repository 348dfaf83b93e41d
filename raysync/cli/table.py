"""The table at the end of `run` and `compare`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from raysync.cli.app import workers_of
from raysync.cli.console import console
from raysync.config import Experiment

Column = tuple[str, str, Callable[[float], str], bool]
"""Heading, key of the summary, how a value is shown, whether its interval is shown."""


def print_table(
    rows: dict[str, list[dict[str, Any] | None]],
    experiment: Experiment,
    seeds: Sequence[int],
    tokens: bool,
) -> None:
    """One row a paradigm; means over the seeds, with the interval of the results. None: a failed
    run.
    """
    columns = [
        *results(experiment, tokens),
        ("samples\nper s", "throughput_samples_per_s", rate_text, False),
        ("wait\nshare", "wait_fraction", "{:.0%}".format, False),
        ("stale-\nness", "staleness_mean", "{:.1f}".format, False),
        ("\nmax", "staleness_max", "{:.0f}".format, False),
        ("lead\nmax", "lead_max", "{:.0f}".format, False),
    ]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(
        "paradigm", overflow="fold"
    )  # a long one takes lines of its own; numbers are never cut
    for name, *_ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for label, summaries in rows.items():
        bad = Counter(one["status"] if one else "failed" for one in summaries)
        del bad["finished"]
        marks = [f"[red]{status} {count} of {len(seeds)}[/red]" for status, count in bad.items()]
        cells = [
            cell([one[key] if one else None for one in summaries], show, interval=interval)
            for _, key, show, interval in columns
        ]
        table.add_row(" ".join([escape(label), *marks]), *cells)
    console.print(title(experiment, seeds), highlight=False, soft_wrap=True)
    console.print(table)


def results(experiment: Experiment, tokens: bool) -> list[Column]:
    """The columns that say how good the model became, and how soon it met the targets."""
    if experiment.timing == "only":
        return [("seconds", "seconds", seconds_text, True)]
    accuracy, loss = experiment.target_accuracy, experiment.target_loss
    columns: list[Column] = [
        (
            ("final\nperplexity", "final_perplexity", perplexity_text, True)
            if tokens
            else ("final\naccuracy", "final_accuracy", "{:.1%}".format, True)
        )
    ]
    if accuracy or not loss:
        name = f"{accuracy:.1%}" if accuracy else "target"
        columns.append((f"s to\n{name}", "time_to_accuracy_s", seconds_text, True))
    if loss:
        columns.append((f"s to\nloss {loss:g}", "time_to_loss_s", seconds_text, True))
    return columns


def seconds_text(value: float) -> str:
    """One decimal; of less than a second, two digits."""
    return f"{value:,.1f}" if value >= 0.95 or not value else f"{value:.2g}"


def rate_text(value: float) -> str:
    """Whole numbers; of less than ten a second, two digits."""
    return f"{value:,.0f}" if value >= 9.95 or not value else f"{value:.2g}"


def perplexity_text(value: float) -> str:
    """Two decimals; of a model that knows nothing, the order of magnitude."""
    return f"{value:.2f}" if value < 1000 else f"{value:.1e}"


def title(experiment: Experiment, seeds: Sequence[int]) -> str:
    """What was trained, by whom, how often; and what `±` means, where there are several seeds."""
    repeats = f"seed {seeds[0]}"
    if len(seeds) > 1:
        repeats = f"mean ± half of the 95% interval over seeds {', '.join(map(str, seeds))}"
    return (
        f"{experiment.model.name} on {experiment.data.name}, workers {workers_of(experiment)},"
        f" {repeats}"
    )


def cell(values: list[float | None], show: Callable[[float], str], *, interval: bool) -> str:
    """The mean over the seeds with half of its interval, and of how many where some have no value.

    As in the report, a half that rounds to 0 is left out.
    """
    if len(values) == 1:
        return "-" if values[0] is None else show(values[0])
    from raysync.results.statistics import estimate  # scipy takes its time to import

    found = estimate(values)
    if found.mean is None:
        return "-"
    half = missing = ""
    if interval and found.low is not None and found.high is not None:
        half = show((found.high - found.low) / 2)
        half = "" if half == show(0.0) else f" ± {half}"
    if not found.complete:
        missing = f" ({found.count} of {found.total})"
    return f"{show(found.mean)}{half}{missing}"
