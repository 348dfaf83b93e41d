"""The tables of a report: rows of numbers, which each face shows as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from raysync.config import Published
from raysync.results.collection import OF_RESULTS, CollectedRun, Collection, by_seed
from raysync.results.columns import (
    EQUAL_TIME,
    WHOLE_WORK,
    Column,
    TableRow,
    final_measure,
    measures_for,
    published_measure,
    ratio_text,
    shown,
)
from raysync.results.equal_time import qualities_at_equal_time
from raysync.results.ranking import Ranking
from raysync.results.statistics import Estimate, estimate, median_run, paired_ratio

REPEATS = Column("repeats", "repeats", about="all runs and trials, and how some ended early")
SEED = Column("seed", "seed", about="of the median run")


@dataclass(frozen=True)
class Table:
    """A table with named rows."""

    first: str  # the heading of the names
    columns: Sequence[Column]
    rows: Mapping[str, TableRow]

    def frame(self) -> pd.DataFrame:
        """Return all cells as text."""
        cells = [[column.cell(row) for column in self.columns] for row in self.rows.values()]
        headings = [column.heading for column in self.columns]
        return pd.DataFrame(cells, pd.Index(self.rows, name=self.first), headings)


def tables_of(collection: Collection, ranking: Ranking, *, median: bool = False) -> list[Table]:
    """Return the table of a scenario's paradigms, and one of published values if there are any.

    Args:
        collection: the runs.
        ranking: the ranking of one of its scenarios.
        median: whether the first has values of median runs (`statistics.median_run`), without
            intervals, instead of means.
    """
    scenario, published = ranking.scenario, collection.published
    means = rows_of(collection, scenario)
    rows = rows_of(collection, scenario, median=True) if median else means
    measures = measures_of(collection, scenario)
    columns = shown(measures, rows.values())
    for column, texts in [] if median else distances(ranking):
        place = [measure.key for measure in columns].index(column.key.removesuffix("_behind"))
        columns.insert(place + 1, column)
        rows = {label: {**row, column.key: texts.get(label)} for label, row in rows.items()}
    found = [Table("paradigm", [REPEATS, *([SEED] if median else []), *columns], rows)]
    if published is not None:
        found.append(published_table(published, measures, means, collection.scenarios[scenario]))
    return found


def measures_of(collection: Collection, scenario: str = "") -> list[Column]:
    """Return the measures of a scenario, with further published ones last."""
    measures = measures_for(collection.criteria(scenario))
    known = {measure.key for measure in measures}
    more = [key for key in published_keys(collection.published) if key not in known]
    return [*measures, *map(published_measure, more)]


def published_keys(published: Published | None) -> list[str]:
    rows = published.rows.values() if published is not None else ()
    return list(dict.fromkeys(key for row in rows for key in row))


def rows_of(
    collection: Collection, scenario: str = "", *, median: bool = False
) -> dict[str, TableRow]:
    """Return the values of each paradigm by its label, in the collection's order.

    Args:
        collection: the runs.
        scenario: one of `collection.scenarios`.
        median: whether to return values of the median run instead of means.
    """
    final = final_measure(collection.criteria(scenario)) or WHOLE_WORK
    groups = collection.scenarios[scenario]
    every = [run for repeats in groups.values() for run in repeats]
    at_equal_time = qualities_at_equal_time(every, collection.criteria(scenario))
    rows: dict[str, TableRow] = {}
    for paradigm, repeats in groups.items():
        statuses = collection.statuses(scenario, paradigm)
        total = statuses.total()
        del statuses["done"]
        row: dict[str, Estimate | float | str | None] = {
            "repeats": f"{total} ({statuses_text(statuses)})".removesuffix(" ()")
        }
        # what broke is no result, but all that there is to see of a run that is under way
        runs = [run for run in repeats if run.end.kind != "broken"] or repeats
        if median:
            failed = len(collection.failures(scenario, paradigm))
            middle = median_run(repeats, final.key, failed, rises=final.rises)
            runs, total = [] if middle is None else [middle], 1
            row["seed"] = None if middle is None else str(middle.seed)
        # beside whole work, a mean with less is of no work
        whole = [run for run in runs if run.end.kind == "done"] or runs
        for measure in measures_of(collection, scenario):
            if measure.key == EQUAL_TIME:
                values = [at_equal_time.get((paradigm, run.seed)) for run in runs]
            else:
                counted = whole if measure.key.startswith(OF_RESULTS) else runs
                values = [run.value(measure.key) for run in counted]
            row[measure.key] = replace(estimate(values), total=total)
        rows[paradigm] = row
    return rows


def statuses_text(statuses: Mapping[str, int]) -> str:
    """Count repeats: `1 diverged, 2 cut by stop.patience`."""
    return ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))


def published_table(
    published: Published,
    measures: Sequence[Column],
    rows: Mapping[str, TableRow],
    groups: Mapping[str, Sequence[CollectedRun]],
) -> Table:
    """Return the published values beside the measured ones or, with `relative_to`, their ratios."""
    base, keys = published.relative_to, published_keys(published)
    columns = []
    found = {label: dict(row) for label, row in rows.items()}
    for measure in (measure for measure in measures if measure.key in keys):
        key, heading = measure.key, measure.heading
        theirs = replace(measure, key=f"{key}_published", heading=f"{heading}, published")
        if base is None:
            columns.append(replace(measure, heading=f"{heading}, measured"))
        columns.append(theirs)
        if base is not None:
            about = f"as a multiple of {base}"
            name = f"{heading} / {base}"
            about_ours = f"{about}, over common seeds"
            columns += [
                Column(f"{key}_ratio", f"{name}, measured", about=about_ours),
                Column(f"{theirs.key}_ratio", f"{name}, published", about=about),
            ]
        for label, row in found.items():
            value = published.rows.get(label, {}).get(key)
            missed = key in published.rows.get(label, {}) and value is None
            row[theirs.key] = "not reached" if missed else value
            if base is not None:
                ours, others = by_seed(groups[label], key), by_seed(groups.get(base, []), key)
                row[f"{key}_ratio"] = range_text(paired_ratio(ours, others), ratio_text)
                reference = published.rows[base].get(key)
                ratio = value / reference if value is not None and reference else None
                row[f"{theirs.key}_ratio"] = ratio
    return Table("paradigm", columns, found)


def distances(ranking: Ranking) -> Iterator[tuple[Column, dict[str, str]]]:
    """Yield columns of the distances from the first over common seeds, with the text by label."""
    for standings in (ranking.times, ranking.final):
        if standings is None or all(versus.margin.mean is None for versus in standings.behind):
            continue
        measure = standings.measure
        how: dict[str, tuple[str, str, Callable[[float], str]]] = {
            "ratio": ("× the first", "as a multiple of the first", ratio_text),
            "points": ("points behind", "percentage points worse than the first", _points_text),
            "difference": ("behind the first", "worse than the first", measure.show),
        }
        heading, about, show = how[measure.compared_by]
        about += ", over common seeds, with the 95% interval of one pair"
        texts = {
            versus.other.paradigm: range_text(versus.margin, show) for versus in standings.behind
        }
        yield Column(f"{measure.key}_behind", heading, about=about), texts


def _points_text(value: float) -> str:
    return f"{100 * value:.2g}"


def range_text(value: Estimate, show: Callable[[float], str]) -> str:
    """Format `2.00 (1.85 to 2.15; 3 of 4 seeds)`."""
    if value.mean is None:
        return "-"
    details = []
    low, high = value.low, value.high
    if low is not None and high is not None and show(low) != show(high):
        details.append(f"{show(low)} to {show(high)}")
    if not value.complete:
        details.append(f"{value.count} of {value.total} seeds")
    return show(value.mean) + (f" ({'; '.join(details)})" if details else "")
