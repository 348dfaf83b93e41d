"""The figures of the page: how fast, where the time went, at which staleness, and which rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from raysync.predict.curves import Axis
from raysync.predict.intervals import Interval
from raysync.predict.what_if import HOUR_S, Prediction, WhatIf
from raysync.results.figures.primitives import (
    Figure,
    Series,
    Trace,
    axis,
    numbers,
    plain,
    rows_layout,
    whiskers,
)

SECTION = "What if?"
ACTIVITIES = (("computing", 100), ("computing what was dropped", 55), ("waiting", 22))
"""What a worker does, and how opaque that is drawn."""
Shown = Sequence[tuple[Series, Prediction]]


def figures_of(answer: WhatIf) -> list[Figure]:
    """Return the figures, in the order of the page."""
    shown = [(Series(each.label, (), i), each) for i, each in enumerate(answer.predictions)]
    ranked = sorted(shown, key=lambda one: -one[1].steps_per_s.value)
    figures = [_rates(ranked), _time(ranked, len(answer.times.steps)), _trade_off(shown)]
    return [*figures, _ranks(answer), _waiting(shown), *_curves(answer)]


def _curves(answer: WhatIf) -> Iterator[Figure]:
    labels = [each.label for each in answer.predictions]
    scale = 1 if answer.ranks.batch_size is not None else 1 / answer.ranks.samples
    unit = _unit(answer.predictions[0])
    for varied, own in groupby(answer.curves, key=lambda curve: curve.axis):
        traces: list[Trace] = []
        for curve in own:
            series = Series(curve.candidate.label, (), labels.index(curve.candidate.label))
            traces.append(
                {
                    **series.trace,
                    "type": "scatter",
                    "mode": "lines+markers",
                    "line": series.line,
                    "marker": {"color": series.color, "size": 6},
                    "x": numbers([_shown(varied, point.at) for point in curve.points]),
                    "y": numbers([scale * point.samples_per_s for point in curve.points]),
                    "customdata": numbers([100 * point.efficiency for point in curve.points]),
                    "hovertemplate": f"%{{x}}: %{{y}} {unit}, %{{customdata}} %<extra></extra>",
                }
            )
        ticks = numbers([_shown(varied, at) for at in varied.points])
        title = f"{varied.noun} (Mbit/s)" if varied.name == "link" else varied.noun
        yield Figure(
            key=f"curve-{varied.name}",
            section=SECTION,
            title=f"With other values: {varied.noun}",
            caption=f"{unit.capitalize()} of the best few; both axes are logarithmic.",
            traces=traces,
            layout={
                "xaxis": axis(title, type="log", tickvals=ticks),
                "yaxis": axis(unit, type="log"),
            },
        )


def _shown(varied: Axis, value: float) -> float:
    return 8e-6 * value if varied.name == "link" else value


def _rate(prediction: Prediction) -> Interval:
    return prediction.samples_per_s or prediction.steps_per_s


def _unit(prediction: Prediction) -> str:
    return "steps per second" if prediction.samples_per_s is None else "samples per second"


def _whiskers(interval: Interval) -> dict[str, Any]:
    return whiskers(interval.value, interval.low, interval.high)


def _rates(shown: Shown) -> Figure:
    traces: list[Trace] = [
        {
            **series.trace,
            "type": "bar",
            "orientation": "h",
            "marker": {"color": series.color},
            "y": [plain(series.label)],
            "x": numbers([_rate(prediction).value]),
            "error_x": _whiskers(_rate(prediction)),
            "hovertemplate": f"%{{x}} {_unit(prediction)}<extra></extra>",
        }
        for series, prediction in shown
    ]
    unit = _unit(shown[0][1])
    return Figure(
        key="rate",
        section=SECTION,
        title="How fast",
        caption=f"{unit.capitalize()} that were applied; whiskers: 95% interval.",
        traces=traces,
        layout={
            "barmode": "stack",
            "xaxis": axis(unit, rangemode="tozero"),
            **rows_layout(len(shown)),
        },
        wide=True,
    )


def _time(shown: Shown, workers: int) -> Figure:
    traces: list[Trace] = []
    for series, each in shown:
        wait = each.wait_fraction.value
        dropped = each.lost_worker_hours.value * HOUR_S / (workers * each.seconds) - wait
        shares = (1 - wait - dropped, dropped, wait)
        for (activity, percent), share in zip(ACTIVITIES, shares, strict=True):
            traces.append(
                {
                    **series.trace,
                    "type": "bar",
                    "orientation": "h",
                    "showlegend": activity == "computing",
                    "marker": {"color": series.pale(percent) if percent < 100 else series.color},
                    "y": [plain(series.label)],
                    "x": numbers([100 * max(0.0, share)]),
                    "hovertemplate": f"%{{x}} % {activity}<extra></extra>",
                }
            )
    return Figure(
        key="time",
        section=SECTION,
        title="Where the time went",
        caption="Share of all workers' time, in %: computing (full colour), computing"
        " pushes that were"
        " dropped (paler), waiting (palest).",
        traces=traces,
        layout={"barmode": "stack", "xaxis": axis("% of the time"), **rows_layout(len(shown))},
        wide=True,
    )


def _trade_off(shown: Shown) -> Figure:
    traces: list[Trace] = [
        {
            **series.trace,
            "type": "scatter",
            "mode": "markers",
            "marker": {"color": series.color, "size": 11},
            "x": numbers([prediction.staleness_mean.value]),
            "y": numbers([_rate(prediction).value]),
            "error_y": _whiskers(_rate(prediction)),
            "hovertemplate": f"{plain(series.label)}: %{{y}} at %{{x}}<extra></extra>",
        }
        for series, prediction in shown
    ]
    return Figure(
        key="trade-off",
        section=SECTION,
        title="Speed against staleness",
        caption="To the upper left is better. What staleness costs in accuracy is not known here.",
        traces=traces,
        layout={
            "xaxis": axis("mean staleness (versions)", rangemode="tozero"),
            "yaxis": axis(_unit(shown[0][1]), rangemode="tozero"),
        },
    )


def _ranks(answer: WhatIf) -> Figure:
    low, middle, high = (
        [float(np.quantile(seconds, share)) for seconds in answer.times.steps.values()]
        for share in (0.05, 0.5, 0.95)
    )
    trace: Trace = {
        "name": "median of a rank",
        "type": "scatter",
        "mode": "markers",
        "marker": {"color": "$text", "size": 6},
        "x": [plain(rank) for rank in answer.times.steps],
        "y": numbers(middle),
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": numbers(np.subtract(high, middle)),
            "arrayminus": numbers(np.subtract(middle, low)),
            "color": "$muted",
            "thickness": 1.5,
        },
        "hovertemplate": "%{x}: %{y} s<extra></extra>",
    }
    return Figure(
        key="ranks",
        section=SECTION,
        title="Step times of the ranks",
        caption="As measured, in seconds: median, and from the 5th to the 95th percentile.",
        traces=[trace],
        layout={"xaxis": {"type": "category"}, "yaxis": axis("seconds", rangemode="tozero")},
    )


def _waiting(shown: Shown) -> Figure:
    traces: list[Trace] = [
        {
            **series.trace,
            "type": "scatter",
            "mode": "lines+markers",
            "line": series.line,
            "marker": {"color": series.color, "size": 5},
            "x": [plain(rank) for rank in prediction.waiting],
            "y": numbers([100 * share for share in prediction.waiting.values()]),
            "hovertemplate": "%{x}: %{y} %<extra></extra>",
        }
        for series, prediction in shown
    ]
    return Figure(
        key="waiting",
        section=SECTION,
        title="Who waits",
        caption=(
            "Share of each rank's own time that it waits, in %. Those that do not"
            " wait are waited for."
        ),
        traces=traces,
        layout={"xaxis": {"type": "category"}, "yaxis": axis("% of its time", rangemode="tozero")},
        wide=True,
    )
