"""A report as Markdown, for pull requests and papers: the answer, the tables, and what they were measured with."""

from __future__ import annotations

import pandas as pd

from raysync.results.answer import answer, overall
from raysync.results.collection import Collection
from raysync.results.context import commands, configuration, dates, environment, title
from raysync.results.text_tables import legend, notes, paradigm_table, published_table


def markdown(collection: Collection, *, median: bool = False) -> str:
    """The whole report.

    Args:
        collection: of runs.
        median: tables hold the values of the median run in place of means.
    """
    scenarios = list(collection.scenarios())
    parts = [f"# {collection.name}", f"{title(collection)}.", overall(collection)]
    for scenario in scenarios:
        parts += [f"## {scenario}" if scenario else "", answer(collection, scenario),
                  _text(paradigm_table(collection, scenario, median=median))]
        if collection.published is not None:
            parts.append(_text(published_table(collection, scenario)))
    parts.append(legend(median))
    if collection.published is not None:
        parts.append(f"Published: {collection.published.source}. {collection.published.note}".strip())
    parts += notes(collection)
    settings = pd.Series(configuration(collection), name="value").rename_axis("setting").to_frame()
    parts += ["## Configuration", _text(settings),
              f"{dates(collection)}, {environment(collection)}.",
              "\n".join(["```sh", *commands(collection), "```"])]
    return "\n\n".join(filter(None, parts)) + "\n"


def _text(frame: pd.DataFrame) -> str:
    escaped = frame.map(lambda value: str(value).replace("|", "\\|"))
    return str(escaped.to_markdown(disable_numparse=True))
