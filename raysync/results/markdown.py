"""A report as Markdown, for pull requests and papers: the answer, the tables, and what they were
measured with.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

from raysync.results.collection import Collection
from raysync.results.provenance import commands, configuration, dates, environment, title
from raysync.results.ranking import answer, overall
from raysync.results.text_tables import legend, notes, paradigm_table, published_table


def markdown(collection: Collection, *, median: bool = False) -> str:
    """The whole report.

    Args:
        collection: of runs.
        median: tables hold the values of the median run in place of means.
    """
    scenarios = list(collection.scenarios())
    parts = [
        f"# {plain(collection.name)}",
        f"{plain(title(collection))}.",
        plain(overall(collection)),
    ]
    for scenario in scenarios:
        parts += [
            f"## {plain(scenario)}" if scenario else "",
            plain(answer(collection, scenario)),
            _text(paradigm_table(collection, scenario, median=median)),
        ]
        if collection.published is not None:
            parts.append(_text(published_table(collection, scenario)))
    parts.append(legend(median))
    if collection.published is not None:
        parts.append(
            plain(f"Published: {collection.published.source}. {collection.published.note}".strip())
        )
    parts += map(plain, notes(collection))
    settings = pd.Series(configuration(collection), name="value").rename_axis("setting").to_frame()
    parts += [
        "## Configuration",
        _text(settings),
        plain(f"{dates(collection)}, {environment(collection)}."),
        _block(commands(collection)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def plain(text: str) -> str:
    """A text, some of which may come from a record, in one line of Markdown: no HTML in it, no
    picture, no link.
    """
    escaped = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return escaped.replace("](", "]\\(").replace("][", "]\\[")


def _text(frame: pd.DataFrame) -> str:
    def escaped(value: object) -> str:
        return plain(str(value)).replace("|", "\\|")

    shown = frame.map(escaped).rename(index=escaped, columns=escaped)
    return str(shown.to_markdown(disable_numparse=True))


def _block(lines: Sequence[str]) -> str:
    """Lines of a shell, fenced by more backticks than there are in a row within."""
    within = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, within + 1)
    return "\n".join([f"{fence}sh", *lines, fence])
