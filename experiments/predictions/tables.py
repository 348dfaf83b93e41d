"""The tables of both pages, and the numbers in their prose."""

from __future__ import annotations

from itertools import combinations

import pandas as pd
from labtables import Results, markdown

WITHIN, GLOBAL_BATCH = 0.1, 128
"""The error that the claim allows, and the samples of a round."""


def _rows(results: Results) -> pd.DataFrame:
    rows = pd.read_csv(results.folder / "results" / "predictions.csv")
    return rows.assign(
        to_ray=rows.predicted / rows.ray - 1, to_virtual=rows.predicted / rows.virtual - 1
    )


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    rows = _rows(results)
    head = ["paradigm", "setting", "predicted", "virtual", "Ray", "of virtual", "of Ray"]
    return {
        "kinds": _kinds(rows),
        "errors": markdown(
            head,
            [
                [
                    f"`{row.paradigm}`",
                    f"{row.setting}{', extrapolated' if row.extrapolates else ''}",
                    f"{row.predicted:,.0f}",
                    f"{row.virtual:,.0f}",
                    f"{row.ray:,.0f}",
                    f"{row.to_virtual:+.1%}",
                    f"{row.to_ray:+.1%}",
                ]
                for row in rows.itertuples()
            ],
        ),
    }


def _kinds(rows: pd.DataFrame) -> str:
    """Tabulate the errors by what differs from the measured run."""
    lines = [
        [
            f"other {name}" if name != "paradigm" else "paradigm, BSP itself among them",
            f"{(part.to_ray.abs() <= WITHIN).sum()} of {len(part)}",
            *(
                f"{part[key].min():+.1%} to {part[key].max():+.1%}"
                for key in ("to_ray", "to_virtual")
            ),
        ]
        for name, part in rows.groupby("varied", sort=False)
    ]
    header = ["what differs", "within 10 % of Ray", "predicted less Ray", "less virtual time"]
    return markdown(header, lines)


def _in_order(rows: pd.DataFrame) -> tuple[int, int]:
    """Count the pairs of paradigms whose faster one is faster on Ray, and all pairs."""
    pairs = list(combinations(rows[rows.varied == "paradigm"].itertuples(), 2))
    right = [(one.predicted > other.predicted) == (one.ray > other.ray) for one, other in pairs]
    return sum(right), len(right)


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    rows = _rows(results)
    ray, virtual = rows.to_ray.abs(), rows.to_virtual.abs()
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
        "worst": f"{worst.paradigm}, {worst.setting}",
        "virtual median": f"{virtual.median():.1%}",
        "virtual largest": f"{virtual.max():.0%}",
    }
