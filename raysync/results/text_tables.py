"""The tables as text, for Markdown and for the page, and what a reader must know beside them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from raysync.record.storage import display_name
from raysync.results.collection import Collection
from raysync.results.columns import ratio_text
from raysync.results.tables import cell, columns, published_keys, table


def paradigm_table(
    collection: Collection, scenario: str = "", *, median: bool = False
) -> pd.DataFrame:
    """The table of paradigms as text: a row a paradigm, a column a measure. Measures that nobody
    has are left out.
    """
    numbers = table(collection, scenario, median=median)
    shown = [
        measure
        for measure in columns(collection, scenario)
        if numbers[f"{measure.key}_count"].any()
    ]
    text = pd.DataFrame(
        {
            measure.heading: [cell(row, measure) for _, row in numbers.iterrows()]
            for measure in shown
        },
        index=numbers.index,
    )
    repeats = [
        f"{row.repeats}{f' ({row.statuses})' if row.statuses else ''}"
        for _, row in numbers.iterrows()
    ]
    text.insert(0, "repeats", repeats)
    if median:
        text.insert(
            1, "seed", ["-" if pd.isna(seed) else f"{seed:.0f}" for seed in numbers["seed"]]
        )
    return text


def published_table(collection: Collection, scenario: str = "") -> pd.DataFrame:
    """Measured beside published, as text: of each measure of the published table, or of its ratios
    where it has those.
    """
    published = collection.published
    assert published is not None, "no published table"
    numbers = table(collection, scenario)
    measures = {measure.key: measure for measure in columns(collection, scenario)}
    text = pd.DataFrame(index=numbers.index)
    for key in published_keys(published):
        measure = measures[key]
        if published.relative_to is None:
            text[f"{measure.heading}, measured"] = [
                cell(row, measure) for _, row in numbers.iterrows()
            ]
            text[f"{measure.heading}, published"] = [
                _or_dash(value, measure.show) for value in numbers[f"{key}_published"]
            ]
            continue
        to = f"{measure.heading} / {published.relative_to}"
        text[f"{to}, measured"] = [_ratio(row, key) for _, row in numbers.iterrows()]
        text[f"{to}, published"] = [
            _or_dash(value, ratio_text) for value in numbers[f"{key}_published_ratio"]
        ]
    return text


def legend(median: bool = False) -> str:
    """How to read the numbers of the tables."""
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
    """What was left out, or went wrong."""
    found = [
        f"Unfinished: {run.label} in {display_name(run.record.path)}; {run.unfinished}."
        for run in collection.runs
        if run.unfinished
    ]
    if collection.superseded:
        found.append(
            f"{collection.superseded} earlier record(s) of the same scenario, paradigm and seed are"
            " left out."
        )
    if collection.failed:
        listed = "; ".join(
            f"{one.label}: {one.error.splitlines()[0] if one.error else 'no reason given'}"
            for one in collection.failed[:5]
        )
        more = f"; and {len(collection.failed) - 5} more" if len(collection.failed) > 5 else ""
        found.append(f"Trials without a record: {listed}{more}.")
    return found


def _ratio(row: pd.Series[Any], key: str) -> str:
    if pd.isna(row[f"{key}_ratio"]):
        return "-"
    low, high = row[f"{key}_ratio_low"], row[f"{key}_ratio_high"]
    interval = (
        ""
        if pd.isna(low) or ratio_text(low) == ratio_text(high)
        else f" ({ratio_text(low)} to {ratio_text(high)})"
    )
    return f"{ratio_text(row[f'{key}_ratio'])}{interval}"


def _or_dash(value: float, show: Callable[[float], str]) -> str:
    return "-" if pd.isna(value) else show(value)
