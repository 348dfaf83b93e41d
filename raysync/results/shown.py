"""Which measures a table shows, what they are called, and how a number becomes text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from raysync.results.collection import Success


@dataclass(frozen=True)
class Measure:
    """A column of the table."""

    key: str
    """Of `summary.json`."""
    heading: str
    show: Callable[[float], str]
    unit: str = ""
    about: str = ""
    """What it is, in a line."""


def seconds(value: float) -> str:
    """Three digits or so: 0.123, 12.3, 1,234."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def percent(value: float) -> str:
    """97.8%."""
    return f"{value:.1%}"


def perplexity(value: float) -> str:
    """Two decimals; of a model that knows nothing, the order of magnitude."""
    return f"{value:.2f}" if value < 1000 else f"{value:.1e}"


def plain(value: float) -> str:
    """One decimal; whole numbers without."""
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 100 else f"{value:.1f}"


def ratio(value: float) -> str:
    """Three digits: 0.345, 1.23, 12.3."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def target_text(success: Success) -> str:
    """The target in words: "95.0%", "loss 1.8"; "" where none was given."""
    if success.target is None:
        return ""
    return percent(success.target) if success.target_kind == "accuracy" else f"loss {success.target:g}"


def measures_for(success: Success) -> tuple[Measure, ...]:
    """The columns of a scenario's table, in order."""
    shown: list[Measure] = []
    if success.quality == "perplexity":
        shown.append(Measure("final_perplexity", "final perplexity", perplexity, about="of the last evaluation"))
    elif success.quality == "accuracy":
        shown.append(Measure("final_accuracy", "final accuracy", percent, about="of the last evaluation"))
    if success.target_kind is not None:
        shown.append(Measure(success.time_key, f"s to {target_text(success)}", seconds, "s",
                             "until the first evaluation at the target was published"))
    shown.append(Measure("seconds", "seconds", seconds, "s", "of the whole training"))
    if success.quality == "accuracy":
        shown.append(Measure("converged_accuracy", "converged accuracy", percent,
                             about="at the first evaluation that ends five within 0.1% of each other"))
    return (*shown,
            Measure("throughput_samples_per_s", "samples per s", plain, "1/s", "samples applied per second"),
            Measure("wait_fraction", "wait share", lambda value: f"{value:.0%}", about="of the workers' time between push and release"),
            Measure("staleness_mean", "staleness", plain, "versions", "between a gradient's base and its update, mean"),
            Measure("staleness_max", "staleness max", plain, "versions"),
            Measure("lead_max", "lead max", plain, "clocks", "ahead of the slowest, at a release"),
            Measure("dropped", "dropped", plain, "pushes"))


def with_interval(mean: float | None, low: float | None, high: float | None, count: int, total: int,
                  show: Callable[[float], str]) -> str:
    """`3.42 ± 0.31 (2 of 3)`: mean, half of the interval's width, and over how many where some have none."""
    if mean is None or not isfinite(mean):
        return f"none of {total}" if total else "-"
    spread = ""
    if low is not None and high is not None and isfinite(low) and isfinite(high) and high > low:
        spread = f" ± {show((high - low) / 2)}"
    return f"{show(mean)}{spread}{f' ({count} of {total})' if count < total else ''}"
