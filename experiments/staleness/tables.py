"""The tables of both pages, and the numbers in their prose."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from labtables import Results, interval_cell, tabulate

from raysync.results.statistics import Estimate, estimate, paired_difference

SAME = 0.02
"""A difference of loss, in nats, that does not matter; set before the first run."""
NAMES = ("sgd", "momentum 0.9", "adamw", "adamw, beta1 0.99", "muon")
TASKS = ("text", "images")
DELAYS = (0, 1, 2, 4, 8)


def _read(results: Results, part: str) -> pd.DataFrame:
    file = results.folder / "results" / f"staleness.{part}.csv"
    columns = ["task", "optimizer", "delay", "seed", "lr", "loss"]
    return pd.read_csv(file) if file.is_file() else pd.DataFrame(columns=columns)


Losses = dict[int, float | None]
"""Seed -> loss; None: the run diverged."""


def _losses(rows: pd.DataFrame, task: str, optimizer: str, delay: int) -> Losses:
    own = rows[(rows.task == task) & (rows.optimizer == optimizer) & (rows.delay == delay)]
    finite = [loss if loss < float("inf") else None for loss in own.loss]
    return dict(zip(own.seed, finite, strict=True))


def _text(value: Estimate) -> str:
    return interval_cell(value, "+.3f")


def _verdict(value: Estimate) -> str:
    if value.low is None or value.high is None:
        return "-"
    if value.low >= -SAME and value.high <= SAME:
        return "the same"
    if value.low > 0:
        return "worse"
    return "better" if value.high < 0 else "cannot be told"


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    rows, rates = _read(results, "train"), _read(results, "rates")
    return {"cost": _cost(rows), "losses": _grid(rows), "rates": _best_rates(rates)}


def _cost(rows: pd.DataFrame) -> str:
    return tabulate(
        {
            "task": task,
            "optimizer": name,
            "delay 1 less 0": _text(one := _cost_of(rows, task, name, 1)),
            "": _verdict(one),
            "delay 8 less 0": _text(eight := _cost_of(rows, task, name, 8)),
            " ": _verdict(eight),
        }
        for task in TASKS
        for name in NAMES
    )


def _cost_of(rows: pd.DataFrame, task: str, name: str, delay: int) -> Estimate:
    """Return by how much a delay raises the loss."""
    return paired_difference(_losses(rows, task, name, delay), _losses(rows, task, name, 0))


def _mean(losses: Losses) -> str:
    """Format a mean loss, and how many runs diverged."""
    value = estimate(list(losses.values()))
    diverged = value.total - value.count
    return f"{value.mean:.3f}{f', {diverged} diverged' if diverged else ''}"


def _grid(rows: pd.DataFrame) -> str:
    return _by_delay(lambda *chosen: _mean(_losses(rows, *chosen)))


def _by_delay(cell: Callable[[str, str, int], str]) -> str:
    return tabulate(
        {"task": task, "optimizer": name}
        | {f"delay {delay}": cell(task, name, delay) for delay in DELAYS}
        for task in TASKS
        for name in NAMES
    )


def _best_rates(rows: pd.DataFrame) -> str:
    best = rows.loc[rows.groupby(["task", "optimizer", "delay"]).loss.idxmin()]
    found = best.set_index(["task", "optimizer", "delay"]).lr
    return _by_delay(lambda *chosen: f"{found.get(chosen, float('nan')):.3g}")


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    rows = _read(results, "train")

    def difference_of(one: str, other: str) -> Estimate:
        """Return how much more eight updates cost one optimizer than the other, on text."""
        costs = []
        for name in (one, other):
            late, fresh = _losses(rows, "text", name, 8), _losses(rows, "text", name, 0)
            costs.append(
                {
                    seed: None if loss is None or fresh[seed] is None else loss - (fresh[seed] or 0)
                    for seed, loss in late.items()
                }
            )
        return paired_difference(*costs)

    long_beta = paired_difference(
        _losses(rows, "text", "adamw, beta1 0.99", 8), _losses(rows, "text", "adamw", 8)
    )
    return {
        "runs": str(len(rows)),
        "of runs": str(len(TASKS) * len(NAMES) * len(DELAYS) * 10),
        "beta1": _text(long_beta),
        "beta1 verdict": _verdict(long_beta),
        "muon": _text(difference_of("muon", "adamw")),
        **{
            f"{name} {delay}": _text(_cost_of(rows, "text", name, delay))
            for name in NAMES
            for delay in (1, 8)
        },
        "images adamw 8": _text(_cost_of(rows, "images", "adamw", 8)),
    }
