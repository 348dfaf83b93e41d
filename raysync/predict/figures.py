"""The figures of both pages: how fast, where the time went, at which staleness, and which rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from raysync.predict.advise import Advice
from raysync.predict.curves import MBIT, Axis
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

ACTIVITIES = (
    ("computing", 100),
    ("computing what was dropped", 70),
    ("transferring", 45),
    ("waiting", 22),
)
"""What a worker does, and how opaque that is drawn."""
STALENESS = axis("mean staleness (versions)", rangemode="tozero")
Rows = Sequence[tuple[Series, Prediction]]


# ---- what if ----


def figures_of_what_if(answer: WhatIf) -> list[Figure]:
    rows = [(Series(one.label, (), i), one) for i, one in enumerate(answer.predictions)]
    ranked = sorted(rows, key=lambda row: -row[1].steps_per_s.value)
    return [
        _rate_bars(ranked),
        _activity_bars(ranked, len(answer.times.steps)),
        _trade_off(rows),
        _ranks(answer),
        _waiting(rows),
        *_curves(answer),
    ]


def _what_if_figure(key: str, title: str, caption: str, **more: Any) -> Figure:
    return Figure(key=key, section="What if?", title=title, caption=caption, **more)


def _rate_bars(rows: Rows) -> Figure:
    unit = _unit(rows[0][1])
    traces = (
        _bar(series, _rate(one).value, unit, error_x=_whiskers(_rate(one))) for series, one in rows
    )
    return _what_if_figure(
        "rate",
        "How fast",
        f"{unit.capitalize()} that were applied; whiskers: 95% interval.",
        **_bars(traces, axis(unit, rangemode="tozero"), len(rows)),
    )


def _rate(prediction: Prediction) -> Interval:
    return prediction.samples_per_s or prediction.steps_per_s


def _unit(prediction: Prediction) -> str:
    return "steps per second" if prediction.samples_per_s is None else "samples per second"


def _whiskers(interval: Interval) -> dict[str, Any]:
    return whiskers(interval.value, interval.low, interval.high)


def _activity_bars(rows: Rows, workers: int) -> Figure:
    traces: list[Trace] = []
    for series, one in rows:
        wait, computing = one.wait_fraction.value, one.computing_fraction
        dropped = one.lost_worker_hours.value * HOUR_S / (workers * one.seconds) - wait
        shares = (computing, dropped, 1 - computing - dropped - wait, wait)
        for (activity, percent), share in zip(ACTIVITIES, shares, strict=True):
            color = series.pale(percent) if percent < 100 else series.color
            trace = _bar(series, 100 * max(0.0, share), f"% {activity}", marker={"color": color})
            traces.append(trace | {"showlegend": activity == "computing"})
    return _what_if_figure(
        "time",
        "Where the time went",
        "Share of all workers' time, in %: computing (full colour), computing pushes that were"
        " dropped, transferring, and waiting, each paler.",
        **_bars(traces, axis("% of the time"), len(rows)),
    )


def _trade_off(rows: Rows) -> Figure:
    traces: list[Trace] = [
        {
            **series.trace,
            "type": "scatter",
            "mode": "markers",
            "marker": {"color": series.color, "size": 11},
            "x": numbers([one.staleness_mean.value]),
            "y": numbers([_rate(one).value]),
            "error_y": _whiskers(_rate(one)),
            "hovertemplate": f"{plain(series.label)}: %{{y}} at %{{x}}<extra></extra>",
        }
        for series, one in rows
    ]
    return _what_if_figure(
        "trade-off",
        "Speed against staleness",
        "To the upper left is better. What staleness costs in accuracy is not known here.",
        traces=traces,
        layout={"xaxis": STALENESS, "yaxis": axis(_unit(rows[0][1]), rangemode="tozero")},
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
    return _what_if_figure(
        "ranks",
        "Step times of the ranks",
        "As measured, in seconds: median, and from the 5th to the 95th percentile.",
        traces=[trace],
        layout={"xaxis": {"type": "category"}, "yaxis": axis("seconds", rangemode="tozero")},
    )


def _waiting(rows: Rows) -> Figure:
    traces = [
        _lines(
            series,
            [plain(rank) for rank in one.waiting],
            [100 * share for share in one.waiting.values()],
            "%",
            5,
        )
        for series, one in rows
    ]
    return _what_if_figure(
        "waiting",
        "Who waits",
        "Share of each rank's own time that it waits, in %. Those that do not wait are waited for.",
        traces=traces,
        layout={"xaxis": {"type": "category"}, "yaxis": axis("% of its time", rangemode="tozero")},
        wide=True,
    )


def _curves(answer: WhatIf) -> Iterator[Figure]:
    labels = [one.label for one in answer.predictions]
    scale = 1 if answer.ranks.batch_size is not None else 1 / answer.ranks.samples
    unit = _unit(answer.predictions[0])
    for varied, of_axis in groupby(answer.curves, key=lambda curve: curve.axis):
        traces: list[Trace] = []
        for curve in of_axis:
            series = Series(curve.candidate.label, (), labels.index(curve.candidate.label))
            x = numbers([_in_unit(varied, point.at) for point in curve.points])
            y = [scale * point.samples_per_s for point in curve.points]
            trace = _lines(series, x, y, f"{unit}, %{{customdata}} %", 6)
            efficiency = numbers([100 * point.efficiency for point in curve.points])
            traces.append(trace | {"customdata": efficiency})
        ticks = numbers([_in_unit(varied, at) for at in varied.points])
        title = f"{varied.noun} (Mbit/s)" if varied.name == "link" else varied.noun
        yield _what_if_figure(
            f"curve-{varied.name}",
            f"With other values: {varied.noun}",
            f"{unit.capitalize()} of the best few; both axes are logarithmic.",
            traces=traces,
            layout={
                "xaxis": axis(title, type="log", tickvals=ticks),
                "yaxis": axis(unit, type="log"),
            },
        )


def _in_unit(varied: Axis, value: float) -> float:
    return MBIT * value if varied.name == "link" else value


# ---- advise ----


def figures_of_advice(advice: Advice) -> list[Figure]:
    """Return the figures of `raysync advise`: the few best, and all that was timed."""
    return [_contender_bars(advice), _candidates(advice)]


def _advice_figure(key: str, title: str, caption: str, **more: Any) -> Figure:
    return Figure(key=key, section="Advice", title=title, caption=caption, **more)


def _contender_bars(advice: Advice) -> Figure:
    labels = list(advice.contenders)
    traces = [
        _bar(
            Series(ranked.paradigm, (), labels.index(ranked.paradigm)),
            value.mean,
            "s",
            error_x=whiskers(value.mean, value.low, value.high),
        )
        for ranked in advice.time.ranked
        if (value := ranked.value).mean is not None
    ]
    return _advice_figure(
        "times",
        "The few best",
        f"{advice.time.measure.heading}; whiskers: 95% interval of the mean over seeds.",
        **_bars(traces, axis("s", rangemode="tozero"), len(traces)),
    )


def _candidates(advice: Advice) -> Figure:
    trace: Trace = {
        "name": "timed",
        "type": "scatter",
        "mode": "markers",
        "marker": {"color": "$muted", "size": 8},
        "x": numbers([one.staleness for one in advice.timed]),
        "y": numbers([one.seconds for one in advice.timed]),
        "text": [plain(one.candidate.label) for one in advice.timed],
        "hovertemplate": "%{text}: %{y} s at %{x}<extra></extra>",
    }
    return _advice_figure(
        "timed",
        "All that was timed",
        "Seconds of the whole work against mean staleness: to the lower left is better.",
        traces=[trace],
        layout={"xaxis": STALENESS, "yaxis": axis("s", rangemode="tozero")},
        wide=True,
    )


# ---- traces and layouts ----


def _bar(series: Series, value: float, hover: str, **more: Any) -> Trace:
    return {
        **series.trace,
        "type": "bar",
        "orientation": "h",
        "marker": {"color": series.color},
        "y": [plain(series.label)],
        "x": numbers([value]),
        "hovertemplate": f"%{{x}} {hover}<extra></extra>",
        **more,
    }


def _lines(series: Series, x: Sequence[Any], y: Sequence[float], hover: str, size: int) -> Trace:
    return {
        **series.trace,
        "type": "scatter",
        "mode": "lines+markers",
        "line": series.line,
        "marker": {"color": series.color, "size": size},
        "x": x,
        "y": numbers(y),
        "hovertemplate": f"%{{x}}: %{{y}} {hover}<extra></extra>",
    }


def _bars(traces: Iterable[Trace], title: Mapping[str, Any], count: int) -> dict[str, Any]:
    layout = {"barmode": "stack", "xaxis": title, **rows_layout(count)}
    return {"traces": list(traces), "layout": layout, "wide": True}
