"""The tables of README.md, and the numbers in its prose."""

from __future__ import annotations

import pandas as pd
from labtables import Results, markdown


def _rows(results: Results, setting: str) -> pd.DataFrame:
    rows = pd.read_csv(results.folder / "results" / "local-steps.time.csv")
    return rows[rows.setting == setting]


def _beside(row: pd.Series) -> str:
    """Format a published figure and ours."""
    return f"{row.published:g} / {'given' if row.is_given else f'{row.ours:.3g}'}"


def _grid(rows: pd.DataFrame) -> str:
    steps = sorted(rows.steps.unique())
    cells = rows.set_index(["mbit_per_s", "steps"])
    return markdown(
        ["Mbit/s", *(f"H = {each}" for each in steps)],
        [
            [f"{rate:g}", *(_beside(cells.loc[rate, each]) for each in steps)]
            for rate in rows.mbit_per_s.unique()
        ],
    )


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    halos = _rows(results, "halos-4x4").set_index(["paradigm", "steps"]).ours
    steps = sorted(halos.index.levels[1])
    return {
        "utilisation": _grid(_rows(results, "diloco-measured")),
        "tokens": _grid(_rows(results, "ft-diloco")),
        "halos": markdown(
            ["paradigm", *(f"H = {each}" for each in steps)],
            [
                [f"`{name}`", *(f"{halos[name, each]:.0f}%" for each in steps)]
                for name in ("bsp", "asp")
            ],
        ),
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    measured, tokens = _rows(results, "diloco-measured"), _rows(results, "ft-diloco")
    ratios = {
        name: (rows.ours / rows.published)[~rows.is_given.astype(bool)]
        for name, rows in (("measured", measured), ("tokens", tokens))
    }
    local = (tokens.steps > 1) & ~tokens.is_given.astype(bool)
    off = (tokens.ours / tokens.published - 1)[local].abs().max()
    return {
        "least": f"{ratios['measured'].min():.2f}",
        "most": f"{ratios['measured'].max():.2f}",
        "points": str(len(ratios["measured"])),
        "local": f"{off:.0%}",
        "plain": f"{ratios['tokens'].max():.1f}",
    }
