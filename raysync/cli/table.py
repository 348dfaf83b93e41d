"""The table at the end of `run` and `compare`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from raysync.cli.app import console, workers_of
from raysync.config import Experiment

Column = tuple[str, str, Callable[[float], str], bool]
"""Heading, key of the summary, how a value is shown, whether its spread is shown."""


def print_table(
    rows: dict[str, list[dict[str, Any] | None]], experiment: Experiment, seeds: Sequence[int], tokens: bool,
) -> None:
    """One row a paradigm; means over the seeds, with the standard deviation of the results. None: a failed run."""
    columns = [
        *results(experiment, tokens),
        ("samples\nper s", "throughput_samples_per_s", "{:,.0f}".format, False),
        ("wait\nshare", "wait_fraction", "{:.0%}".format, False),
        ("stale-\nness", "staleness_mean", "{:.1f}".format, False),
        ("\nmax", "staleness_max", "{:.0f}".format, False),
        ("lead\nmax", "lead_max", "{:.0f}".format, False),
    ]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("paradigm")  # takes more lines where the numbers leave it no room, as in the log of a job
    for name, *_ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for label, summaries in rows.items():
        bad = Counter(one["status"] if one else "failed" for one in summaries)
        del bad["finished"]
        marks = [f"[red]{status} {count} of {len(seeds)}[/red]" for status, count in bad.items()]
        cells = [cell([one[key] if one else None for one in summaries], show, spread=spread)
                 for _, key, show, spread in columns]
        table.add_row(" ".join([escape(label), *marks]), *cells)
    console.print(title(experiment, seeds), highlight=False, soft_wrap=True)
    console.print(table)


def results(experiment: Experiment, tokens: bool) -> list[Column]:
    """The columns that say how good the model became, and how soon it met the targets."""
    if experiment.timing == "only":
        return [("seconds", "seconds", "{:,.1f}".format, True)]
    accuracy, loss = experiment.target_accuracy, experiment.target_loss
    columns: list[Column] = [("final\nperplexity", "final_perplexity", perplexity_text, True) if tokens else
                             ("final\naccuracy", "final_accuracy", "{:.1%}".format, True)]
    if accuracy or not loss:
        name = f"{accuracy:.1%}" if accuracy else "target"
        columns.append((f"s to\n{name}", "time_to_accuracy_s", "{:.1f}".format, True))
    if loss:
        columns.append((f"s to\nloss {loss:g}", "time_to_loss_s", "{:.1f}".format, True))
    return columns


def perplexity_text(value: float) -> str:
    """Two decimals; of a model that knows nothing, the order of magnitude."""
    return f"{value:.2f}" if value < 1000 else f"{value:.1e}"


def title(experiment: Experiment, seeds: Sequence[int]) -> str:
    """What was trained, by whom, how often."""
    repeats = "mean (± standard deviation) over seeds" if len(seeds) > 1 else "seed"
    repeats += f" {', '.join(map(str, seeds))}"
    return f"{experiment.model.name} on {experiment.data.name}, workers {workers_of(experiment)}, {repeats}"


def cell(values: list[float | None], show: Callable[[float], str], *, spread: bool) -> str:
    """The mean over the seeds, and of how many where some have no value."""
    there = [value for value in values if value is not None]
    if not there:
        return "-"
    deviation = f" ± {show(stdev(there))}" if spread and len(there) > 1 else ""
    missing = f" ({len(there)} of {len(values)})" if len(there) < len(values) else ""
    return f"{show(mean(there))}{deviation}{missing}"
