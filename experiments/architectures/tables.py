"""The table of README.md, and the numbers in its prose."""

from __future__ import annotations

import pandas as pd
from labtables import Results, by_seed, markdown

from raysync.results.columns import seconds_form, share_form

MODEL = "config/model"


def tables(results: Results) -> dict[str, str]:
    """By the names of their marks."""
    trials = results.trials("architectures")
    rules = list(dict.fromkeys(trials.rule))
    rows = [
        [
            model,
            f"{there.parameters.iloc[0] / 1e6:.2f} M",
            *(_text(there, rule, "seconds") for rule in rules),
            f"{barrier(there):.1f}",
            format(_value(there, "bsp", "wait_fraction"), share_form(0)),
        ]
        for model, there in trials.groupby(MODEL, sort=False)
    ]
    return {
        "architectures": markdown(
            [
                "model",
                "parameters",
                *(f"`{rule}`, s" for rule in rules),
                "BSP / ASP",
                "wait share, BSP",
            ],
            rows,
        )
    }


def facts(results: Results) -> dict[str, str]:
    """By the names of their marks: BSP's time in ASP's for each model."""
    trials = results.trials("architectures")
    return {model: f"{barrier(there):.1f}" for model, there in trials.groupby(MODEL)}


def barrier(trials: pd.DataFrame) -> float:
    """What BSP takes in ASP's time."""
    return _value(trials, "bsp", "seconds") / _value(trials, "asp", "seconds")


def _value(trials: pd.DataFrame, rule: str, key: str) -> float:
    [value] = by_seed(trials[trials.rule == rule], key).values()
    assert value is not None, f"{rule} has no {key}"
    return value


def _text(trials: pd.DataFrame, rule: str, key: str) -> str:
    value = _value(trials, rule, key)
    return format(value, seconds_form(value))
