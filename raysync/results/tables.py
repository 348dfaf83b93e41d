"""The table of paradigms of a scenario, as numbers and as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from raysync.config import Published
from raysync.results.collection import OF_RESULTS, CollectedRun, Collection, by_seed
from raysync.results.columns import (
    OF_LOSSES,
    WHOLE_WORK,
    Measure,
    final_measure,
    measures_for,
    published_measure,
    ratio_text,
    with_interval,
)
from raysync.results.ranking import Ranking, Standings
from raysync.results.statistics import Estimate, estimate, median_run, paired_ratio


@dataclass(frozen=True)
class Column:
    heading: str
    about: str
    show: Callable[[Any], str]
    """Returns the cell of a row."""
    brief: Callable[[Any], str] | None = None
    """The same for a terminal, without intervals; None: `show`."""
    only_in_pages: bool = False


def table(collection: Collection, scenario: str = "", *, median: bool = False) -> pd.DataFrame:
    """Return a row for each paradigm, indexed by its label, in the collection's order.

    Args:
        collection: the runs.
        scenario: one of `collection.scenarios`.
        median: whether to return values of the median run (`statistics.median_run`), without
            intervals, instead of means.

    Returns:
        Columns `repeats` (with trials without a record), `finished` (that did their work),
        `statuses` ("1 diverged, 2 cut by stop.patience"; "": all finished), `seed` (with `median`),
        and for each measure KEY: `KEY`, `KEY_low`, `KEY_high` (95 % interval), `KEY_count` (repeats
        with a value); NaN: no value.
        For a KEY of a published table also `KEY_published`; with its `relative_to` also
        `KEY_ratio`, `KEY_ratio_low`, `KEY_ratio_high`, `KEY_ratio_count` (measured, paired over
        seeds) and `KEY_published_ratio`.
    """
    groups, published = collection.scenarios[scenario], collection.published
    final = final_measure(collection.criteria(scenario)) or WHOLE_WORK
    measures = table_measures(collection, scenario)
    rows: dict[str, dict[str, Any]] = {}
    for paradigm, repeats in groups.items():
        row = _repeat_columns(collection, scenario, paradigm)
        # what broke is no result, but all that there is to see of a run that is under way
        runs = [run for run in repeats if run.end.kind != "broken"] or repeats
        if median:
            failed = len(collection.failures(scenario, paradigm))
            middle = median_run(repeats, final.key, failed, rises=final.rises)
            runs = [] if middle is None else [middle]
            row["seed"] = None if middle is None else middle.seed
        for measure in measures:
            counted = of_equal_work(runs) if measure.key.startswith(OF_RESULTS) else runs
            row |= _estimate_columns(
                measure.key, estimate([run.value(measure.key) for run in counted])
            )
        if published is not None:
            row |= _published_columns(published, paradigm, groups)
        rows[paradigm] = row
    frame = pd.DataFrame.from_dict(rows, orient="index")
    numbers = [name for name in frame.columns if name != "statuses"]
    frame[numbers] = frame[numbers].apply(pd.to_numeric)
    frame.index.name = "paradigm"
    return frame


def of_equal_work(runs: Sequence[CollectedRun]) -> Sequence[CollectedRun]:
    """Return the runs that did their work, if any did: a mean with others is of no work."""
    return [run for run in runs if run.end.kind == "done"] or runs


def _repeat_columns(collection: Collection, scenario: str, paradigm: str) -> dict[str, Any]:
    statuses = collection.statuses(scenario, paradigm)
    repeats, finished = statuses.total(), statuses.pop("done", 0)
    text = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    return {"repeats": repeats, "finished": finished, "statuses": text}


def _estimate_columns(key: str, value: Estimate) -> dict[str, Any]:
    return {
        key: value.mean,
        f"{key}_low": value.low,
        f"{key}_high": value.high,
        f"{key}_count": value.count,
    }


def _published_columns(
    published: Published, paradigm: str, groups: Mapping[str, Sequence[CollectedRun]]
) -> dict[str, Any]:
    """Return a paradigm's published values, with measured and published ratios to `relative_to`."""
    row: dict[str, Any] = {}
    base = published.relative_to
    for key in published_keys(published):
        value = published.rows.get(paradigm, {}).get(key)
        row[f"{key}_published"] = value
        if base is None:
            continue
        ours, theirs = by_seed(groups[paradigm], key), by_seed(groups.get(base, []), key)
        row |= _estimate_columns(f"{key}_ratio", paired_ratio(ours, theirs))
        reference = published.rows[base].get(key)
        row[f"{key}_published_ratio"] = (
            value / reference if value is not None and reference else None
        )
    return row


def published_keys(published: Published | None) -> list[str]:
    rows = published.rows.values() if published is not None else ()
    return list(dict.fromkeys(key for row in rows for key in row))


def table_measures(collection: Collection, scenario: str = "") -> list[Measure]:
    """Return the measures of a scenario's table, with further published ones last."""
    measures = list(measures_for(collection.criteria(scenario)))
    listed = {measure.key for measure in measures}
    more = [key for key in published_keys(collection.published) if key not in listed]
    return [*measures, *map(published_measure, more)]


def cell(row: pd.Series[Any], measure: Measure) -> str:
    """Format a measure in a row of `table`: `3.42 ± 0.31 (2 of 3)`."""
    total = 1 if "seed" in row.index else int(row["repeats"])
    key = measure.key
    return with_interval(
        row[key],
        row[f"{key}_low"],
        row[f"{key}_high"],
        int(row[f"{key}_count"]),
        total,
        measure.form,
    )


def as_text(
    numbers: pd.DataFrame, measures: Sequence[Measure], distances: Mapping[str, Column] = {}
) -> pd.DataFrame:
    """Format the table of paradigms: a row a paradigm, a column a measure that has values.

    Args:
        numbers: as `table` returns them.
        measures: the columns.
        distances: key of a measure -> a column after it.
    """
    rows = [row for _, row in numbers.iterrows()]
    text = pd.DataFrame(index=numbers.index)
    for measure in measures:
        values = numbers[measure.key if measure in OF_LOSSES else f"{measure.key}_count"]
        if values.fillna(0.0).any():
            cells = [cell(row, measure) for row in rows]
            text.insert(len(text.columns), measure.heading, cells)
            if column := distances.get(measure.key):
                cells = [column.show(row) for row in rows]
                text.insert(len(text.columns), column.heading, cells, allow_duplicates=True)
    repeats = [f"{row.repeats} ({row.statuses})".removesuffix(" ()") for row in rows]
    text.insert(0, "repeats", repeats)
    if "seed" in numbers:
        seeds = ["-" if pd.isna(seed) else f"{seed:.0f}" for seed in numbers["seed"]]
        text.insert(1, "seed", seeds)
    return text


def published_as_text(
    numbers: pd.DataFrame, measures: Sequence[Measure], published: Published
) -> pd.DataFrame:
    """Format measured beside published values, or ratios if the published table has them.

    Args:
        numbers: as `table` returns them, of means.
        measures: the columns.
        published: the published table.
    """
    by_key = {measure.key: measure for measure in measures}
    text = pd.DataFrame(index=numbers.index)
    for key in published_keys(published):
        measure = by_key[key]
        if published.relative_to is None:
            heading, show, theirs = measure.heading, measure.show, numbers[f"{key}_published"]
            ours = [cell(row, measure) for _, row in numbers.iterrows()]
        else:
            heading = f"{measure.heading} / {published.relative_to}"
            show, theirs = ratio_text, numbers[f"{key}_published_ratio"]
            ours = [_ratio_text(row, key) for _, row in numbers.iterrows()]
        text[f"{heading}, measured"] = ours
        text[f"{heading}, published"] = [_or_dash(value, show) for value in theirs]
    return text


def _ratio_text(row: pd.Series[Any], key: str) -> str:
    if pd.isna(row[f"{key}_ratio"]):
        return "-"
    text = ratio_text(row[f"{key}_ratio"])
    low, high = row[f"{key}_ratio_low"], row[f"{key}_ratio_high"]
    if pd.isna(low) or ratio_text(low) == ratio_text(high):
        return text
    return f"{text} ({ratio_text(low)} to {ratio_text(high)})"


def _or_dash(value: float, show: Callable[[float], str]) -> str:
    return "-" if pd.isna(value) else show(value)


def distance_columns(ranking: Ranking) -> dict[str, Column]:
    """Return key -> distances from the first by this measure, for rows of `table`."""
    found = {}
    for standings in (ranking.times, ranking.final):
        if standings is not None and any(each.margin.mean is not None for each in standings.behind):
            column = distance_column(standings)

            def show(row: pd.Series[Any], of: Column = column) -> str:
                return of.show(str(row.name))

            found[standings.measure.key] = replace(column, show=show)
    return found


def distance_column(standings: Standings) -> Column:
    """Return the distances from the first over common seeds, for rows that are labels."""
    measure = standings.measure
    how = {
        "ratio": ("× the first", "as a multiple of the first"),
        "points": ("points behind", "percentage points worse than the first"),
        "difference": ("behind the first", "worse than the first"),
    }
    heading, about = how[measure.compared_by]
    texts = {each.other.paradigm: _distance_text(each.margin, measure) for each in standings.behind}
    return Column(
        heading,
        f"{about}, over common seeds, with the 95% interval of one pair",
        lambda label: texts.get(label, "-"),
    )


def _distance_text(margin: Estimate, measure: Measure) -> str:
    """Format `2.00 (1.85 to 2.15; 3 of 4 seeds)`."""
    shows: dict[str, Callable[[float], str]] = {
        "ratio": ratio_text,
        "points": lambda value: f"{100 * value:.2g}",
        "difference": measure.show,
    }
    show = shows[measure.compared_by]
    if margin.mean is None:
        return "-"
    details = []
    low, high = margin.low, margin.high
    if low is not None and high is not None and show(low) != show(high):
        details.append(f"{show(low)} to {show(high)}")
    if not margin.complete:
        details.append(f"{margin.count} of {margin.total} seeds")
    return show(margin.mean) + (f" ({'; '.join(details)})" if details else "")
