"""A report as Markdown, for pull requests and papers: the answer, the tables, and what they were
measured with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from raysync.record.storage import display_name
from raysync.results.collection import Collection
from raysync.results.provenance import commands, configuration, dates, environment, title
from raysync.results.ranking import Ranking, rank_all
from raysync.results.sentences import answer, bottlenecks, cautions, overall, resumptions
from raysync.results.tables import as_text, behind_leaders, columns, published_as_text, table

LISTED = 5
"""Trials without a record that are named; of more, only how many there are."""


def markdown(collection: Collection, *, median: bool = False) -> str:
    """Return the whole report.

    Args:
        collection: the runs.
        median: tables hold the values of the median run in place of means.
    """
    rankings = rank_all(collection)
    parts = [
        f"# {plain(collection.name)}",
        f"{plain(title(collection))}.",
        plain(overall(rankings)),
    ]
    for ranking in rankings:
        parts += _scenario(collection, ranking, median)
    parts.append(legend(median))
    if collection.published is not None:
        parts.append(
            plain(f"Published: {collection.published.source}. {collection.published.note}".strip())
        )
    parts += map(plain, notes(collection))
    settings = pd.Series(configuration(collection), name="value").rename_axis("setting").to_frame()
    parts += [
        "## Configuration",
        markdown_table(settings),
        plain(f"{dates(collection)}, {environment(collection)}."),
        _block(commands(collection)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _scenario(collection: Collection, ranking: Ranking, median: bool) -> list[str]:
    """Return the answer and the tables of a scenario."""
    scenario, published = ranking.scenario, collection.published
    measures = columns(collection, scenario)
    numbers = table(collection, scenario, median=median)
    parts = [
        f"## {plain(scenario)}" if scenario else "",
        plain(answer(ranking)),
        markdown_table(as_text(numbers, measures, {} if median else behind_leaders(ranking))),
        "\n".join(f"- {plain(text)}" for text in bottlenecks(collection, scenario)),
    ]
    if published is not None:
        means = table(collection, scenario) if median else numbers
        parts.append(markdown_table(published_as_text(means, measures, published)))
    return parts


def legend(median: bool = False) -> str:
    """Say how to read the numbers of the tables."""
    if median:
        return (
            "Values are those of the median run by final result; a run without a result counts as"
            " worse than any with one."
        )
    return (
        "Means over the repeats ± half of the 95% interval (Student's t); none is given for a"
        ' single value, or where it is narrower than the digits shown. "(2 of 3)": the others have'
        " no value; the mean is of those that do."
    )


def notes(collection: Collection) -> list[str]:
    """Say what was left out, or went wrong."""
    sentences = [
        f"Unfinished: {run.label} in {display_name(run.record.path)}; {run.unfinished}."
        for run in collection.runs
        if run.unfinished
    ]
    sentences += [*cautions(collection), *resumptions(collection)]
    if collection.superseded:
        sentences.append(
            f"{collection.superseded} earlier record(s) of the same scenario, paradigm and seed are"
            " left out."
        )
    if collection.failed:
        listed = "; ".join(
            f"{trial.label}: {trial.error.splitlines()[0] if trial.error else 'no reason given'}"
            for trial in collection.failed[:LISTED]
        )
        rest = len(collection.failed) - LISTED
        more = f"; and {rest} more" if rest > 0 else ""
        sentences.append(f"Trials without a record: {listed}{more}.")
    return sentences


def plain(text: str) -> str:
    """Return a text, some of which may come from a record, in one line of Markdown: no HTML in it,
    no picture, no link.
    """
    escaped = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return escaped.replace("](", "]\\(").replace("][", "]\\[")


def markdown_table(frame: pd.DataFrame) -> str:
    """Return a table of texts as Markdown; nothing in it is markup."""

    def escaped(value: object) -> str:
        return plain(str(value)).replace("|", "\\|")

    text = frame.map(escaped).rename(index=escaped, columns=escaped)
    return str(text.to_markdown(disable_numparse=True))


def _block(lines: Sequence[str]) -> str:
    """Fence lines of a shell by more backticks than there are in a row within."""
    within = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, within + 1)
    return "\n".join([f"{fence}sh", *lines, fence])
