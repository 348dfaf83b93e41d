"""The table of notes.md, and the numbers in the prose of README.md."""

from __future__ import annotations

import pandas as pd
from labtables import Results, by_seed, tabulate

from raysync.results.columns import ratio_text

MODEL = "config/model"


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    trials = results.trials("architectures")
    paradigms = trials.label.unique()
    rows = [
        {
            "model": model,
            "parameters": f"{repeats.parameters.iloc[0] / 1e6:.2f} M",
            **{f"`{each}`, s": ratio_text(_value(repeats, each, "seconds")) for each in paradigms},
            "BSP / ASP": f"{barrier(repeats):.2f}",
            "wait share, BSP": f"{_value(repeats, 'bsp', 'wait_fraction'):.0%}",
        }
        for model, repeats in trials.groupby(MODEL, sort=False)
    ]
    return {"architectures": tabulate(rows)}


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks: BSP's time in ASP's for each model."""
    trials = results.trials("architectures")
    return {model: f"{barrier(repeats):.2f}" for model, repeats in trials.groupby(MODEL)}


def barrier(trials: pd.DataFrame) -> float:
    """Return BSP's time in ASP's."""
    return _value(trials, "bsp", "seconds") / _value(trials, "asp", "seconds")


def _value(trials: pd.DataFrame, paradigm: str, key: str) -> float:
    [value] = by_seed(trials[trials.label == paradigm], key).values()
    assert value is not None, f"{paradigm} has no {key}"
    return value
