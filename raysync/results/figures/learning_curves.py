"""The figures of learning: quality against time and samples, and the time to every target."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
import pandas as pd

from raysync.core.metrics import ACCURACY, PERPLEXITY, PrimaryMetric
from raysync.results.collection import CollectedRun, Criteria
from raysync.results.figures.downsample import Floats, even_indices, extreme_indices, on_common_grid
from raysync.results.figures.journal_events import workload_of
from raysync.results.figures.primitives import (
    Figure,
    Series,
    Trace,
    View,
    axes_from_zero,
    axis,
    caption,
    curve,
    line,
    numbers,
    over_seeds,
    plain,
    rule,
    scatter,
)

SECTION = "How well, how soon"
LARGEST_LOG = 700.0  # the exponential of more is infinite


@dataclass(frozen=True)
class MeasureAxis:
    """A measure of a model, as an axis."""

    name: str
    title: str
    rises: bool
    unit: str
    axis: dict[str, Any]
    scale: float = 1.0  # the factor from the metric to the axis
    logarithm: str = ""  # the metric that is its logarithm, if any

    @property
    def key(self) -> str:
        """The name in keys of figures, which become ids and file names."""
        return re.sub(r"[^A-Za-z0-9]+", "-", self.name).strip("-").lower() or "metric"

    def of(self, evaluations: pd.DataFrame) -> Floats:
        """Return the values of the metric; an accuracy in per cent."""
        if self.name not in evaluations and self.name == PERPLEXITY.name:
            return np.asarray(np.exp(np.minimum(evaluations.loss, LARGEST_LOG)), dtype=float)
        missing = pd.Series(np.nan, evaluations.index)
        return np.asarray(self.scale * evaluations.get(self.name, missing), dtype=float)

    def target(self, criteria: Criteria) -> float | None:
        """Return the experiment's target on this axis; None: it is a value of another measure."""
        target = criteria.target
        if target is None or target.metric not in (self.name, self.logarithm):
            return None
        return self.scale * target.value if target.metric == self.name else float(exp(target.value))


KNOWN_AXES = {
    ACCURACY: MeasureAxis(
        name="accuracy", title="test accuracy (%)", rises=True, unit=" %", axis={}, scale=100.0
    ),
    PERPLEXITY: MeasureAxis(
        name="perplexity",
        title="test perplexity",
        rises=False,
        unit="",
        axis={"type": "log"},
        logarithm="loss",
    ),
}


def figures(all_series: Sequence[Series], criteria: Criteria) -> list[Figure | None]:
    """Return the figures of a scenario; without evaluations only of the work done."""
    if criteria.metric is None or not any(
        len(run.record.evaluations) for series in all_series for run in series.runs
    ):
        return [_work_done(all_series)]
    measure = measure_axis(criteria.metric)
    return [
        _against(all_series, criteria, measure, "time"),
        _against(all_series, criteria, measure, "samples"),
        _time_to(all_series, criteria, measure),
    ]


def measure_axis(metric: PrimaryMetric) -> MeasureAxis:
    linear = MeasureAxis(
        name=metric.name, title=f"test {metric.name}", rises=metric.rises, unit="", axis={}
    )
    return KNOWN_AXES.get(metric, linear)


def points(run: CollectedRun, measure: MeasureAxis, x: str) -> tuple[Floats, Floats]:
    """Return a run's finite evaluations: seconds since the first release, or samples; values."""
    frame, values = run.record.evaluations, measure.of(run.record.evaluations)
    if x == "time":
        at = np.asarray(frame["at"], dtype=float) - run.started_at
    else:
        at = np.asarray(frame.progress, dtype=float) * workload_of(run.record)
    finite = np.isfinite(values) & np.isfinite(at)
    return at[finite], values[finite]


def _against(
    all_series: Sequence[Series], criteria: Criteria, measure: MeasureAxis, x: str
) -> Figure:
    traces: list[Trace] = []
    hover = f"%{{y}}{measure.unit} at %{{x}} {'s' if x == 'time' else x}"
    for series in all_series:
        grid, values = on_common_grid([points(run, measure, x) for run in series.regular])
        traces += curve(series, grid, values, hovertemplate=hover)
        if len(grid) and x == "time":
            traces += _switches(series, grid, values.mean(axis=0))
        for run in series.others:
            traces += _unfinished(series, run, *points(run, measure, x))
    unit = "seconds since the first release" if x == "time" else "samples applied"
    target = measure.target(criteria)
    shapes = [] if target is None else [rule((0, 1), (target, target), xref="paper")]
    unfinished = any(series.others for series in all_series)
    switched = any("diamond" in str(trace.get("marker")) for trace in traces)
    return Figure(
        key=f"{measure.key}-{x}",
        section=SECTION,
        title=f"{measure.name[0].upper()}{measure.name[1:]} against {x}",
        caption=caption(
            f"Test {measure.name}{' in %' if measure.unit else ''} against {unit}.",
            over_seeds(all_series),
            "Dotted, with a cross: a run that did not finish." if unfinished else "",
            "Diamond: the paradigm switched." if switched else "",
            "Dotted line across: the target." if shapes else "",
        ),
        traces=traces,
        layout={
            "xaxis": axis("seconds" if x == "time" else "samples", rangemode="tozero"),
            "yaxis": axis(measure.title, **measure.axis),
            "shapes": shapes,
        },
        views=_views(all_series, measure, "yaxis"),
    )


def _switches(series: Series, x: Floats, y: Floats) -> list[Trace]:
    """Mark the switches of phases on the mean curve."""
    switches = [switch for events in series.run_events for switch in events.of("switch")]
    if not switches:
        return []
    at = np.array([switch.at for switch in switches])
    return [
        scatter(
            series,
            "markers",
            showlegend=False,
            marker={"symbol": "diamond", "size": 10, "color": series.color},
            x=numbers(at),
            y=numbers(np.interp(at, x, y)),
            text=[plain(switch.text) for switch in switches],
            hovertemplate="%{text}<br>%{x} s",
        )
    ]


def _unfinished(series: Series, run: CollectedRun, x: Floats, y: Floats) -> list[Trace]:
    """Draw an unfinished run, with a cross at its end."""
    if not len(x):
        return []
    keep = extreme_indices(y)
    cross = {
        "symbol": "x-thin",
        "size": [0] * (len(keep) - 1) + [11],
        "color": series.color,
        "line": {"width": 2, "color": series.color},
    }
    return [
        line(
            series,
            x[keep],
            y[keep],
            mode="lines+markers",
            marker=cross,
            line={**series.line, "dash": "dot", "width": 1.5},
            showlegend=False,
            hovertemplate=f"%{{y}} at %{{x}}<br>seed {run.seed}: {plain(run.end.how)}",
        )
    ]


def _time_to(
    all_series: Sequence[Series], criteria: Criteria, measure: MeasureAxis
) -> Figure | None:
    curves = {
        series.index: [points(run, measure, "time") for run in series.regular]
        for series in all_series
    }
    best = np.maximum if measure.rises else np.minimum
    met_values = [best.accumulate(y) for pairs in curves.values() for _, y in pairs if len(y)]
    if not met_values:
        return None
    target = measure.target(criteria)
    levels = np.unique(np.concatenate(met_values))
    own_target = [] if target is None else [target]
    targets = np.unique([*levels[even_indices(len(levels))], *own_target])
    traces: list[Trace] = []
    for series in all_series:
        pairs = [pair for pair in curves[series.index] if len(pair[0])]
        if pairs:
            times = np.array([times_to(x, y, targets, rises=measure.rises) for x, y in pairs])
            met = np.isfinite(times).all(axis=0)
            hover = f"%{{y}} s to %{{x}}{measure.unit}"
            traces += curve(series, targets[met], times[:, met], hovertemplate=hover)
    direction: dict[str, Any] = {} if measure.rises else {"autorange": "reversed"}
    shapes = [] if target is None else [rule((target, target), (0, 1), yref="paper")]
    ends = "A curve ends at the best that every seed reached." if over_seeds(all_series) else ""
    return Figure(
        key=f"time-to-{measure.key}",
        section=SECTION,
        title=f"Time to {measure.name}, for every target",
        caption=caption(
            f"Seconds from the first release until test {measure.name} first met each target.",
            over_seeds(all_series),
            ends,
            "Dotted line: the experiment's target." if shapes else "",
        ),
        traces=traces,
        layout={
            "xaxis": axis(f"target: {measure.title}", **measure.axis, **direction),
            "yaxis": axis("seconds", rangemode="tozero"),
            "shapes": shapes,
        },
        views=_views(all_series, measure, "xaxis")[::-1],
    )


def times_to(x: Floats, y: Floats, targets: Floats, *, rises: bool) -> Floats:
    """Return when a curve first met each target; infinity: never.

    Args:
        x: times, rising.
        y: the values at these times.
        targets: in any order.
        rises: whether more is better.
    """
    best = np.maximum.accumulate(y if rises else -y)
    first = np.searchsorted(best, targets if rises else -targets)
    return np.append(x, np.inf)[first]


def _views(all_series: Sequence[Series], measure: MeasureAxis, of_axis: str) -> tuple[View, ...]:
    """Return the views of a rising metric: all, and the upper part, where paradigms differ."""
    values = np.concatenate(
        [points(run, measure, "time")[1] for series in all_series for run in series.runs]
    )
    if not measure.rises or len(values) < 2:
        return ()
    lowest, low, best = np.quantile(values, [0.0, 0.25, 1.0])
    # the upper part has three quarters of the values; if it is not much smaller, it is no use
    if low == best or best - low > 0.6 * (best - lowest):
        return ()
    margin, upper_margin = 0.03 * (best - lowest), 0.05 * (best - low)
    return (
        View("all", lowest - margin, best + margin, of_axis),
        View("upper part", low, best + upper_margin, of_axis),
    )


def _work_done(all_series: Sequence[Series]) -> Figure:
    """Draw the progress of work, where no model was evaluated."""
    traces: list[Trace] = []
    for series in all_series:
        curves = []
        for pushes in series.regular_pushes:
            done = pushes[pushes.outcome == "applied"].sort_values("applied_at_s")
            if len(done):
                x, y = np.append(0.0, done.applied_at_s), np.append(0.0, done.samples.cumsum())
                keep = extreme_indices(y)
                curves.append((x[keep], y[keep]))
        grid, values = on_common_grid(curves)
        traces += curve(series, grid, values, hovertemplate="%{y} samples after %{x} s")
    return Figure(
        key="samples-time",
        section="How fast",
        title="Work done against time",
        caption=caption(
            "Samples applied against seconds since the first release.", over_seeds(all_series)
        ),
        traces=traces,
        layout=axes_from_zero("seconds", "samples"),
    )
