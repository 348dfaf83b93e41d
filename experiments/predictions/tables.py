"""The tables of notes.md, and the numbers in its prose."""

from __future__ import annotations

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
        )
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    rows = _rows(results)
    ray, virtual = rows.to_ray.abs(), rows.to_virtual.abs()
    bsp = rows.iloc[0]
    worst = rows.loc[ray.idxmax()]
    return {
        "settings": str(len(rows)),
        "within": str((ray <= WITHIN).sum()),
        "overhead": f"{1000 * GLOBAL_BATCH * (1 / bsp.ray - 1 / bsp.predicted):.1f}",
        "median": f"{ray.median():.1%}",
        "largest": f"{ray.max():.0%}",
        "worst": f"{worst.paradigm}, {worst.setting}",
        "virtual median": f"{virtual.median():.1%}",
        "virtual largest": f"{virtual.max():.0%}",
    }
