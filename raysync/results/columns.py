"""The measures in tables: their names, and how a number becomes text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import Literal

from raysync.core.metrics import ACCURACY, PERPLEXITY
from raysync.results.collection import Criteria

Form = Callable[[float], str]  # value -> its format specification
ComparedBy = Literal["ratio", "points", "difference"]


def seconds_form(value: float) -> str:
    """Format three digits: 0.0123, 1.23, 12.3, 1,234."""
    rounded = float(f"{value:.3g}")  # 99.99 is 100
    if rounded >= 100 or rounded <= 0:
        return ",.0f"
    return f".{min(9, 2 - floor(log10(rounded)))}f"


def percent_form(_: float) -> str:
    """Format percent with one decimal: 97.8%."""
    return ".1%"


def share_form(_: float) -> str:
    """Format percent without decimals: 42%."""
    return ".0%"


def perplexity_form(value: float) -> str:
    """Format two decimals; of an untrained model, the order of magnitude."""
    return ".2f" if value < 1000 else ".1e"


def digits_form(_: float) -> str:
    """Format four digits: 0.01234, 1.234, 1.234e+06."""
    return ".4g"


def plain_form(value: float) -> str:
    """Format 1.3, 12.3, 123."""
    return ",.0f" if abs(value) >= 100 else ".1f"


def count_form(value: float) -> str:
    """Format integers as they are, and means of them with one decimal."""
    return ",.0f" if value == round(value) else ",.1f"


@dataclass(frozen=True)
class Measure:
    key: str
    """The key in `summary.json`."""
    heading: str
    form: Form
    unit: str = ""
    """The unit of the number in the data frame; "": a fraction of 1."""
    about: str = ""
    """A definition in a line."""
    rises: bool = False
    """Whether more is better."""
    compared_by: ComparedBy = "ratio"
    """How paradigms differ: by ratio (times, perplexities), percentage points, or difference."""

    def show(self, value: float) -> str:
        return format(value, self.form(value))


OF_LAST = "of the last evaluation"
FINAL_ACCURACY = Measure(
    "final_accuracy",
    "final accuracy",
    percent_form,
    about=OF_LAST,
    rises=True,
    compared_by="points",
)
FINAL_PERPLEXITY = Measure("final_perplexity", "final perplexity", perplexity_form, about=OF_LAST)
CONVERGED_ACCURACY = Measure(
    "converged_accuracy",
    "converged accuracy",
    percent_form,
    about="at the first evaluation that ends five within 0.1% of each other and above chance",
    rises=True,
    compared_by="points",
)
FINALS = {ACCURACY: FINAL_ACCURACY, PERPLEXITY: FINAL_PERPLEXITY}
WHOLE_WORK = Measure("seconds", "seconds", seconds_form, "s", "of the whole training")
OF_EVERY_RUN = (
    Measure(
        "throughput_samples_per_s",
        "samples per s",
        seconds_form,
        "1/s",
        "samples applied per second",
    ),
    Measure("busy_fraction", "compute share", share_form, "", "of the workers' time, computing"),
    Measure(
        "transfer_fraction",
        "transfer share",
        share_form,
        "",
        "of the workers' time, transferring weights and gradients",
    ),
    Measure(
        "server_fraction",
        "server share",
        share_form,
        "",
        "of the workers' time, waiting for the server's weights; on Ray part of the transfer",
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
        "between a gradient's weights and its update, mean of a run",
    ),
    Measure("staleness_max", "staleness max", count_form, "versions", "the largest of a run"),
    Measure(
        "lead_max",
        "lead max",
        count_form,
        "clocks",
        "ahead of the slowest active worker, at a release, largest of a run",
    ),
    Measure("dropped", "dropped", count_form, "pushes", "that were not applied"),
    Measure(
        "shared_cores_fraction",
        "shared cores",
        share_form,
        "",
        "of the time, in which other runs used the same cores: they measure each other",
    ),
)
OF_LOSSES = (
    Measure("lost_workers", "lost workers", count_form, "", "that no fault of the file ended"),
    Measure(
        "worker_away_s", "workers away", seconds_form, "s", "until others had joined, added up"
    ),
    Measure("lost_servers", "lost servers", count_form, "", "that were replaced"),
    Measure("server_away_s", "servers away", seconds_form, "s", "until others had recovered"),
)
"""Measures that are left out where no run lost anything."""


def metric_text(metric: str, value: float) -> str:
    """Format an accuracy in percent, a perplexity with two decimals, others with four digits."""
    forms = {ACCURACY.name: percent_form, PERPLEXITY.name: perplexity_form}
    return format(value, forms.get(metric, digits_form)(value))


def target_text(criteria: Criteria) -> str:
    """Return the target in words, such as "95.0%", "loss 1.8", "f1 0.9", or ""."""
    target = criteria.target
    if target is None:
        return ""
    if target.metric == ACCURACY.name:
        return metric_text(target.metric, target.value)
    return f"{target.metric} {target.value:g}"


def final_measure(criteria: Criteria) -> Measure | None:
    """Return the measure of the final model; None: none was trained."""
    metric = criteria.metric
    if metric is None:
        return None
    if metric in FINALS:
        return FINALS[metric]
    return Measure(
        f"final_{metric.name}",
        f"final {metric.name.replace('_', ' ')}",
        digits_form,
        about=OF_LAST,
        rises=metric.rises,
        compared_by="difference",
    )


def time_measure(criteria: Criteria) -> Measure:
    """Return the time to the target or, without one, of the whole work."""
    if criteria.target is None:
        return WHOLE_WORK
    return Measure(
        criteria.time_key,
        f"s to {target_text(criteria)}",
        seconds_form,
        "s",
        "until the first evaluation that met the target was published",
    )


def measures_for(criteria: Criteria) -> tuple[Measure, ...]:
    """Return a table's columns for a scenario, in order."""
    final, time = final_measure(criteria), time_measure(criteria)
    return (
        *([] if final is None else [final]),
        *([] if time is WHOLE_WORK else [time]),
        WHOLE_WORK,
        *([CONVERGED_ACCURACY] if criteria.metric == ACCURACY else []),
        *OF_EVERY_RUN,
        *OF_LOSSES,
    )


def published_measure(key: str) -> Measure:
    """Return the measure of a key that tables have only for a published value."""
    if key.endswith("_accuracy"):
        form: Form = percent_form
    elif key.endswith(("_s", "seconds")):
        form = seconds_form
    elif key.endswith("_max"):
        form = count_form
    elif key.startswith(("final_", "best_")) and not key.endswith(("_loss", "_perplexity")):
        form = digits_form
    else:
        form = plain_form
    return Measure(key, key.replace("_", " "), form)


def ratio_text(value: float) -> str:
    """Format three digits: 0.345, 1.23, 12.3, 1,234."""
    return format(value, seconds_form(value))


def with_interval(
    mean: float | None, low: float | None, high: float | None, count: int, total: int, form: Form
) -> str:
    """Return `3.42 ± 0.31 (2 of 3)`: mean, half the interval, and repeats with a value if not all.

    Both numbers have the mean's digits; an interval below these is omitted.
    """
    if mean is None or not isfinite(mean):
        return f"none of {total}" if total else "-"
    digits = form(mean)
    text = format(mean, digits)
    if low is not None and high is not None and isfinite(low) and isfinite(high):
        half = format((high - low) / 2, digits)
        text += f" ± {half}" if half != format(0.0, digits) else ""
    return f"{text} ({count} of {total})" if count < total else text
