"""The tables of both pages, and the numbers in their prose."""

from __future__ import annotations

import pandas as pd
from labtables import Results, markdown

FOUR = "4 servers on the workers' nodes"


def _rows(results: Results) -> pd.DataFrame:
    return results.of_runs("saturated-link").fillna({"change": ""})


def _text(seconds: float) -> str:
    return f"{seconds:.1f} s"


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    rows = _rows(results)
    limits = rows[rows.change == ""]
    return {
        "limits": markdown(
            ["paradigm", "it takes", "the bottleneck", "without it"],
            [
                [f"`{row.paradigm}`", _text(row.direct_s), row.what, _text(row.without_s)]
                for row in limits.itertuples()
            ],
        ),
        "changes": markdown(
            ["paradigm", "change", "predicted", "run"],
            [
                [f"`{row.paradigm}`", row.change, _text(row.predicted_s), _text(row.direct_s)]
                for row in rows[rows.change != ""].itertuples()
            ],
        ),
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    rows = _rows(results)
    seconds = rows.set_index(["paradigm", "change"]).direct_s
    return {
        "bsp": _text(seconds["bsp", ""]),
        "asp": _text(seconds["asp", ""]),
        "ring": _text(seconds["bsp(exchange=ring)", ""]),
        "tree": _text(seconds["bsp(exchange=tree)", ""]),
        "bsp 4": _text(seconds["bsp", FOUR]),
        "asp 4": _text(seconds["asp", FOUR]),
        "error": f"{(rows.predicted_s / rows.direct_s - 1).abs().max():.1%}",
    }
