"""Which measures a table shows, what they are called, and how a number becomes text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, isfinite, log10

from raysync.results.collection import Success

Form = Callable[[float], str]
"""From a value to the format specification that shows it."""


def seconds_form(value: float) -> str:
    """Three digits: 0.0123, 1.23, 12.3, 1,234."""
    rounded = float(f"{value:.3g}")  # 99.99 is 100
    if rounded >= 100 or rounded <= 0:
        return ",.0f"
    return f".{min(9, 2 - floor(log10(rounded)))}f"


def percent_form(_: float) -> str:
    """97.8%."""
    return ".1%"


def share_form(_: float) -> str:
    """42%."""
    return ".0%"


def perplexity_form(value: float) -> str:
    """Two decimals; of a model that knows nothing, the order of magnitude."""
    return ".2f" if value < 1000 else ".1e"


def plain_form(value: float) -> str:
    """1.3, 12.3, 123."""
    return ",.0f" if abs(value) >= 100 else ".1f"


def count_form(value: float) -> str:
    """Whole numbers as they are, means of them with one decimal."""
    return ",.0f" if value == round(value) else ",.1f"


@dataclass(frozen=True)
class Measure:
    """A column of the table."""

    key: str
    """Of `summary.json`."""
    heading: str
    form: Form
    unit: str = ""
    """Of the number in the data frame; "" for a fraction of 1."""
    about: str = ""
    """What it is, in a line."""

    def show(self, value: float) -> str:
        """A number as text, without its unit."""
        return format(value, self.form(value))


def ratio_text(value: float) -> str:
    """Three digits: 0.345, 1.23, 12.3, 1,234."""
    return format(value, seconds_form(value))


def target_text(success: Success) -> str:
    """The target in words: "95.0%", "loss 1.8"; "" where none was given."""
    if success.target is None:
        return ""
    return (
        f"{success.target:.1%}" if success.target_kind == "accuracy" else f"loss {success.target:g}"
    )


def final_measure(success: Success) -> Measure | None:
    """How good the model became; None where none was trained."""
    if success.quality == "perplexity":
        return Measure(
            "final_perplexity", "final perplexity", perplexity_form, about="of the last evaluation"
        )
    if success.quality == "accuracy":
        return Measure(
            "final_accuracy", "final accuracy", percent_form, about="of the last evaluation"
        )
    return None


def time_measure(success: Success) -> Measure:
    """How soon the target was met; without one, how long all the work took."""
    if success.target_kind is None:
        return Measure("seconds", "seconds", seconds_form, "s", "of the whole training")
    return Measure(
        success.time_key,
        f"s to {target_text(success)}",
        seconds_form,
        "s",
        "until the first evaluation that met the target was published",
    )


def measures_for(success: Success) -> tuple[Measure, ...]:
    """The columns of a scenario's table, in order."""
    final, to_target, all_work = (
        final_measure(success),
        time_measure(success),
        time_measure(Success("nothing", None, None)),
    )
    shown = [final] if final is not None else []
    shown += [to_target] if to_target.key == all_work.key else [to_target, all_work]
    if success.quality == "accuracy":
        shown.append(
            Measure(
                "converged_accuracy",
                "converged accuracy",
                percent_form,
                about=(
                    "at the first evaluation that ends five within 0.1% of each other and above"
                    " chance"
                ),
            )
        )
    return (
        *shown,
        Measure(
            "throughput_samples_per_s",
            "samples per s",
            seconds_form,
            "1/s",
            "samples applied per second",
        ),
        Measure(
            "wait_fraction",
            "wait share",
            share_form,
            "",
            "of the workers' time, between push and release",
        ),
        Measure(
            "staleness_mean",
            "staleness",
            plain_form,
            "versions",
            "between the one a gradient was computed on and its own, mean of a run",
        ),
        Measure("staleness_max", "staleness max", count_form, "versions", "the largest of a run"),
        Measure(
            "lead_max",
            "lead max",
            count_form,
            "clocks",
            "ahead of the slowest that takes part, at a release, the largest",
        ),
        Measure("dropped", "dropped", count_form, "pushes", "that were not applied"),
    )


def with_interval(
    mean: float | None, low: float | None, high: float | None, count: int, total: int, form: Form
) -> str:
    """`3.42 ± 0.31 (2 of 3)`: mean, half of the interval's width, and over how many where some have
    no value.

    Both numbers have the mean's digits; an interval narrower than these is left out.
    """
    if mean is None or not isfinite(mean):
        return f"none of {total}" if total else "-"
    digits = form(mean)
    spread = ""
    if low is not None and high is not None and isfinite(low) and isfinite(high):
        half = format((high - low) / 2, digits)
        spread = f" ± {half}" if half != format(0.0, digits) else ""
    return f"{format(mean, digits)}{spread}{f' ({count} of {total})' if count < total else ''}"


def interval_text(low: float | None, high: float | None, show: Callable[[float], str]) -> str:
    """`95% interval 3.1 to 3.7`; "" where there is none, or where both ends read the same."""
    if low is None or high is None or show(low) == show(high):
        return ""
    return f"95% interval {show(low)} to {show(high)}"
