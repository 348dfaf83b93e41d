"""A report as Markdown, for pull requests and papers."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from raysync.record.storage import display_name
from raysync.results.collection import Collection
from raysync.results.provenance import commands, configuration, dates, environment, title
from raysync.results.ranking import Ranking, rank_all
from raysync.results.sentences import (
    answer,
    bottlenecks,
    cautions,
    first_of,
    legend,
    losses,
    overall,
    resumptions,
    search_text,
    unfinished,
)
from raysync.results.tables import tables_of

MOST_FAILURES = 5  # the most trials without a record that are listed


def markdown(collection: Collection, *, median: bool = False) -> str:
    """Return the whole report, with values of the median run or with means."""
    rankings = rank_all(collection)
    parts = [
        f"# {plain(collection.name)}",
        f"{plain(title(collection))}.",
        plain(overall(rankings)),
        plain(search_text(collection.search)),
        plain(unfinished(collection)),
    ]
    for ranking in rankings:
        parts += _scenario(collection, ranking, median)
    parts.append(legend(collection, median=median))
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
        _fenced(commands(collection)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _scenario(collection: Collection, ranking: Ranking, median: bool) -> list[str]:
    scenario = ranking.scenario
    return [
        f"## {plain(scenario)}" if scenario else "",
        plain(answer(ranking)),
        *(markdown_table(table.frame()) for table in tables_of(collection, ranking, median=median)),
        "\n".join(f"- {plain(text)}" for text in bottlenecks(collection, scenario)),
    ]


def notes(collection: Collection) -> list[str]:
    """Describe omissions and failures."""
    sentences = [
        f"Unfinished: {run.label} in {display_name(run.record.path)}; {run.incomplete_reason}."
        for run in collection.runs
        if run.incomplete_reason
    ]
    sentences += [*losses(collection), *cautions(collection), *resumptions(collection)]
    if collection.superseded:
        sentences.append(
            f"{collection.superseded} earlier record(s) of the same scenario, paradigm and seed are"
            " left out."
        )
    if collection.failed:
        trials = [
            f"{trial.label}: {trial.error.splitlines()[0] if trial.error else 'no reason given'}"
            for trial in collection.failed
        ]
        named = "; ".join(first_of(trials, MOST_FAILURES, "and {} more"))
        sentences.append(f"Trials without a record: {named}.")
    return sentences


def plain(text: str) -> str:
    """Return a text from a record as one line of Markdown without HTML, picture or link."""
    escaped = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return escaped.replace("](", "]\\(").replace("][", "]\\[")


def markdown_table(frame: pd.DataFrame) -> str:
    """Return a table of texts as Markdown, without markup from its cells."""

    def escaped(value: object) -> str:
        return plain(str(value)).replace("|", "\\|")

    text = frame.map(escaped).rename(index=escaped, columns=escaped)
    return str(text.to_markdown(disable_numparse=True))


def _fenced(lines: Sequence[str]) -> str:
    """Fence lines of a shell with more backticks than they have in a row."""
    longest = max((len(row) for line in lines for row in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([f"{fence}sh", *lines, fence])
