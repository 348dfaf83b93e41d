"""The table of notes.md, and the numbers in the prose of README.md."""

from __future__ import annotations

import pandas as pd
from labtables import Results, by_seed, markdown

from raysync.results.columns import seconds_form, share_form

MODEL = "config/model"


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    trials = results.trials("architectures")
    paradigms = list(dict.fromkeys(trials.label))
    rows = [
        [
            model,
            f"{repeats.parameters.iloc[0] / 1e6:.2f} M",
            *(_text(repeats, paradigm, "seconds") for paradigm in paradigms),
            f"{barrier(repeats):.2f}",
            format(_value(repeats, "bsp", "wait_fraction"), share_form(0)),
        ]
        for model, repeats in trials.groupby(MODEL, sort=False)
    ]
    return {
        "architectures": markdown(
            [
                "model",
                "parameters",
                *(f"`{paradigm}`, s" for paradigm in paradigms),
                "BSP / ASP",
                "wait share, BSP",
            ],
            rows,
        )
    }


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


def _text(trials: pd.DataFrame, paradigm: str, key: str) -> str:
    value = _value(trials, paradigm, key)
    return format(value, seconds_form(value))
