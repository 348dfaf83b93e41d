"""The table of paradigms of each scenario, as numbers; `cell` and `shown` make text of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from raysync.config import Published
from raysync.results.collection import Collection, Run
from raysync.results.columns import (
    Measure,
    count_form,
    measures_for,
    percent_form,
    plain_form,
    seconds_form,
    with_interval,
)
from raysync.results.statistics import Estimate, estimate, median_run, paired_ratio


def table(collection: Collection, scenario: str = "", *, median: bool = False) -> pd.DataFrame:
    """One row a paradigm, in the collection's order; the index is its label.

    Args:
        collection: of runs.
        scenario: one of `collection.scenarios()`.
        median: values are those of the median run (`statistics.median_run`) in place of means; then
            there are no intervals, and `KEY_count` says whether it has a value.

    Returns:
        Columns `repeats` (with trials that left no record), `finished`, `statuses` (text: "1
        diverged, 1 failed"; "" if all finished), `seed` (of the median run; only with `median`),
        and of each measure KEY of `columns`: `KEY` (mean), `KEY_low`, `KEY_high` (95 % interval),
        `KEY_count` (of `repeats`, how many have a value). NaN: there is none. With a published
        table of the experiment also, of each KEY in it: `KEY_published`; and, if that has
        `relative_to`: `KEY_ratio`, `KEY_ratio_low`, `KEY_ratio_high`, `KEY_ratio_count` (measured,
        paired over seeds) and `KEY_published_ratio`.
    """
    groups, published = collection.scenarios()[scenario], collection.published
    final = collection.success(scenario).final_key or "seconds"
    rows: dict[str, dict[str, Any]] = {}
    for paradigm, repeats in groups.items():
        lost = len(collection.failures(scenario, paradigm))
        row = _counts(repeats, lost)
        shown = repeats
        if median:
            middle = median_run(repeats, final, lost)
            shown = [] if middle is None else [middle]
            row["seed"] = None if middle is None else middle.seed
        for measure in columns(collection, scenario):
            row |= _columns(measure.key, estimate([run.value(measure.key) for run in shown]))
        if published is not None:
            row |= _published(published, paradigm, groups)
        rows[paradigm] = row
    frame = pd.DataFrame.from_dict(rows, orient="index")
    numbers = [name for name in frame.columns if name != "statuses"]
    frame[numbers] = frame[numbers].apply(pd.to_numeric)
    frame.index.name = "paradigm"
    return frame


def columns(collection: Collection, scenario: str = "") -> list[Measure]:
    """The measures of a scenario's table: those that are always shown, and others that a published
    table has.
    """
    measures = list(measures_for(collection.success(scenario)))
    listed = {measure.key for measure in measures}
    more = [key for key in published_keys(collection.published) if key not in listed]
    return [*measures, *(Measure(key, key.replace("_", " "), _form_of(key)) for key in more)]


def published_keys(published: Published | None) -> list[str]:
    """The measures of a published table."""
    rows = published.rows.values() if published is not None else ()
    return list(dict.fromkeys(key for row in rows for key in row))


def cell(row: pd.Series[Any], measure: Measure) -> str:
    """The text of a measure in a row of `table`: `3.42 ± 0.31 (2 of 3)`."""
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


def by_seed(runs: Sequence[Run], key: str) -> dict[int, float | None]:
    """Seed -> value, for pairs."""
    return {run.seed: run.value(key) for run in runs}


def _counts(repeats: Sequence[Run], lost: int) -> dict[str, Any]:
    statuses = Counter(run.status for run in repeats)
    statuses["failed"] += lost
    finished = statuses.pop("finished", 0)
    text = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()) if count)
    return {"repeats": len(repeats) + lost, "finished": finished, "statuses": text}


def _columns(key: str, of: Estimate) -> dict[str, Any]:
    return {key: of.mean, f"{key}_low": of.low, f"{key}_high": of.high, f"{key}_count": of.count}


def _published(
    published: Published, paradigm: str, groups: Mapping[str, Sequence[Run]]
) -> dict[str, Any]:
    """The published values of a paradigm, and the ratios to those of `relative_to`, measured and
    published.
    """
    found: dict[str, Any] = {}
    base = published.relative_to
    for key in published_keys(published):
        value = published.rows.get(paradigm, {}).get(key)
        found[f"{key}_published"] = value
        if base is None:
            continue
        found |= _columns(
            f"{key}_ratio",
            paired_ratio(by_seed(groups[paradigm], key), by_seed(groups.get(base, []), key)),
        )
        reference = published.rows[base].get(key)
        found[f"{key}_published_ratio"] = (
            value / reference if value is not None and reference else None
        )
    return found


def _form_of(key: str) -> Any:
    if key.endswith("_accuracy"):
        return percent_form
    return (
        seconds_form
        if key.endswith(("_s", "seconds"))
        else count_form
        if key.endswith("_max")
        else plain_form
    )
