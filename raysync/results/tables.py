"""The table of paradigms of each scenario, as numbers; `shown` makes text of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pandas as pd

from raysync.config import Published
from raysync.results.collection import Collection, Run, Success
from raysync.results.shown import Measure, measures_for, plain, with_interval
from raysync.results.statistics import Estimate, estimate, median_run, paired_ratio


def table(collection: Collection, scenario: str = "", *, median: bool = False) -> pd.DataFrame:
    """One row a paradigm, in the collection's order; the index is its label.

    Args:
        collection: of runs.
        scenario: one of `collection.scenarios()`.
        median: values are those of the median run (`statistics.median_run`) in place of means; then there are no
            intervals, and `KEY_count` says whether it has a value.

    Returns:
        Columns `repeats` (with trials that left no record), `finished`, `statuses` (text: "1 diverged, 1 failed"; "" if all
        finished), `seed` (of the median run; only with `median`), and of each measure KEY of `shown.measures_for`: `KEY`
        (mean), `KEY_low`, `KEY_high` (95 % interval), `KEY_count` (of `repeats`, how many have a value). NaN: there is
        none. With a published table of the experiment also, of each KEY in it: `KEY_published`; and, if that has
        `relative_to`: `KEY_ratio`, `KEY_ratio_low`, `KEY_ratio_high`, `KEY_ratio_count` (measured, paired over seeds) and
        `KEY_published_ratio`.
    """
    runs = collection.scenarios()[scenario]
    success = collection.success(scenario)
    published = collection.published
    rows: dict[str, dict[str, Any]] = {}
    for paradigm, repeats in runs.items():
        lost = len(collection.failures(scenario, paradigm))
        row = _counts(repeats, lost)
        shown = _shown_runs(repeats, success, median)
        if median:
            row["seed"] = shown[0].seed if shown else None
        for measure in columns(collection, scenario):
            row |= _columns(measure.key, estimate([*(run.value(measure.key) for run in shown), *[None] * (0 if median else lost)]))
        if published is not None:
            row |= _published(published, paradigm, runs)
        rows[paradigm] = row
    frame = pd.DataFrame.from_dict(rows, orient="index")
    frame.index.name = "paradigm"
    return frame


def columns(collection: Collection, scenario: str = "") -> list[Measure]:
    """The measures of a scenario's table: those that are always shown, and others that a published table has."""
    measures = list(measures_for(collection.success(scenario)))
    listed = {measure.key for measure in measures}
    rows = collection.published.rows.values() if collection.published is not None else ()
    more = dict.fromkeys(key for row in rows for key in row if key not in listed)
    return [*measures, *(Measure(key, key.replace("_", " "), plain) for key in more)]


def cell(row: pd.Series, measure: Measure) -> str:
    """The text of a measure in a row of `table`: `3.42 ± 0.31 (2 of 3)`."""
    count = int(row[f"{measure.key}_count"])
    total = int(row["repeats"]) if "seed" not in row.index else min(1, int(row["repeats"]))
    return with_interval(row[measure.key], row[f"{measure.key}_low"], row[f"{measure.key}_high"], count, total, measure.show)


def _counts(repeats: Sequence[Run], lost: int) -> dict[str, Any]:
    statuses = Counter(run.status for run in repeats)
    statuses["failed"] += lost
    finished = statuses.pop("finished", 0)
    text = ", ".join(f"{count} {status}" for status, count in statuses.items() if count)
    return {"repeats": len(repeats) + lost, "finished": finished, "statuses": text}


def _shown_runs(repeats: Sequence[Run], success: Success, median: bool) -> list[Run]:
    if not median:
        return list(repeats)
    middle = median_run(repeats, success.final_key or "seconds")
    return [] if middle is None else [middle]


def _columns(key: str, of: Estimate) -> dict[str, Any]:
    return {key: of.mean, f"{key}_low": of.low, f"{key}_high": of.high, f"{key}_count": of.count}


def _published(published: Published, paradigm: str, runs: dict[str, list[Run]]) -> dict[str, Any]:
    """The published values of a paradigm, and the ratios to those of `relative_to`, measured and published."""
    columns: dict[str, Any] = {}
    base = published.relative_to
    for key in dict.fromkeys(key for row in published.rows.values() for key in row):
        value = published.rows.get(paradigm, {}).get(key)
        columns[f"{key}_published"] = value
        if base is None:
            continue
        ratio = paired_ratio(by_seed(runs[paradigm], key), by_seed(runs.get(base, []), key))
        columns |= _columns(f"{key}_ratio", ratio)
        reference = published.rows[base].get(key)
        columns[f"{key}_published_ratio"] = value / reference if value is not None and reference else None
    return columns


def by_seed(runs: Sequence[Run], key: str) -> dict[int, float | None]:
    """Seed -> value, for pairs."""
    return {run.seed: run.value(key) for run in runs}
