"""The tables of both pages, and the numbers in their prose."""

from __future__ import annotations

from itertools import combinations

import pandas as pd
from labtables import Results, range_text, tabulate

WITHIN, GLOBAL_BATCH = 0.04, 128
"""The error that the claim allows, and the samples of a round."""


def _rows(results: Results) -> pd.DataFrame:
    rows = results.table("predictions")
    return rows.assign(
        to_ray=rows.calibrated / rows.ray - 1,
        alone_to_ray=rows.predicted / rows.ray - 1,
        to_virtual=rows.predicted / rows.virtual - 1,
    )


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    rows = _rows(results)
    errors = [
        {
            "paradigm": f"`{row.paradigm}`",
            "setting": f"{row.setting}{', extrapolated' if row.extrapolates else ''}",
            "by step times": f"{row.predicted:,.0f}",
            "and calls": f"{row.calibrated:,.0f}",
            "virtual": f"{row.virtual:,.0f}",
            "Ray": f"{row.ray:,.0f}",
            "step times less virtual": f"{row.to_virtual:+.1%}",
            "less Ray": f"{row.alone_to_ray:+.1%}",
            "and calls less Ray": f"{row.to_ray:+.1%}",
        }
        for row in rows.itertuples()
    ]
    return {"kinds": _kinds(rows), "errors": tabulate(errors)}


def _kinds(rows: pd.DataFrame) -> str:
    """Tabulate the errors by what differs from the measured run."""
    return tabulate(
        {
            "what differs": "paradigm, BSP itself among them"
            if name == "paradigm"
            else f"other {name}",
            "within 4 % of Ray": f"{(part.to_ray.abs() <= WITHIN).sum()} of {len(part)}",
            "step times and calls, less Ray": range_text(part.to_ray, "+.1%"),
            "step times alone, less Ray": range_text(part.alone_to_ray, "+.1%"),
            "less virtual time": range_text(part.to_virtual, "+.1%"),
        }
        for name, part in rows.groupby("varied", sort=False)
    )


def _in_order(rows: pd.DataFrame) -> tuple[int, int]:
    """Count the pairs of paradigms whose faster one is faster on Ray, and all pairs."""
    pairs = list(combinations(rows[rows.varied == "paradigm"].itertuples(), 2))
    right = [(one.calibrated > other.calibrated) == (one.ray > other.ray) for one, other in pairs]
    return sum(right), len(right)


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    rows = _rows(results)
    ray, alone, virtual = rows.to_ray.abs(), rows.alone_to_ray.abs(), rows.to_virtual.abs()
    bsp = rows.iloc[0]
    worst = rows.loc[ray.idxmax()]
    return {
        "settings": str(len(rows)),
        "within": str((ray <= WITHIN).sum()),
        "too fast": str((rows.to_ray > 0).sum()),
        "in order": "{} of {}".format(*_in_order(rows)),
        "overhead": f"{1000 * GLOBAL_BATCH * (1 / bsp.ray - 1 / bsp.predicted):.1f}",
        "median": f"{ray.median():.1%}",
        "largest": f"{ray.max():.1%}",
        "alone median": f"{alone.median():.1%}",
        "alone largest": f"{alone.max():.1%}",
        "alone too fast": str((rows.alone_to_ray > 0).sum()),
        "worst": f"{worst.paradigm}, {worst.setting}",
        "virtual median": f"{virtual.median():.1%}",
        "virtual largest": f"{virtual.max():.0%}",
    }
