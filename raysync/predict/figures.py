"""The figures of an answer: how fast, where the time went, at which staleness, and which rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from raysync.config.durations import Steps
from raysync.predict.compared_candidates import ComparedCandidates, Prediction
from raysync.predict.curves import MBIT, Axis, Curve
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

# what a worker does, and how opaque that is drawn
ACTIVITIES = (
    ("computing", 100),
    ("computing what was dropped", 70),
    ("transferring", 45),
    ("waiting", 22),
)
STALENESS = axis("mean staleness (versions)", rangemode="tozero")
Rows = Sequence[tuple[Series, Prediction]]


def figures_of(
    comparison: ComparedCandidates,
    unit: str,
    samples: int,
    times: Steps | None = None,
    curves: Sequence[Curve] = (),
) -> list[Figure]:
    """
    Args:
        comparison: of candidates.
        unit: what is counted per second: samples, or steps.
        samples: of one of them.
        times: the measured steps of ranks, if there are some.
        curves: of the best.
    """
    rows = [(Series(one.label, (), i), one) for i, one in enumerate(comparison.predictions)]
    ranked = sorted(rows, key=lambda row: -row[1].samples_per_s.value)
    labels, per_s = [one.label for one in comparison.predictions], f"{unit} per second"
    return [
        _rate_bars(ranked, per_s, samples),
        _activity_bars(ranked),
        _trade_off(rows, per_s, samples),
        *([] if times is None else [_ranks(times)]),
        _waiting(rows),
        *_curves(curves, labels, per_s, samples),
    ]


def _figure(key: str, title: str, caption: str, **more: Any) -> Figure:
    return Figure(key=key, section="Simulated", title=title, caption=caption, **more)


def _rate_bars(rows: Rows, unit: str, samples: int) -> Figure:
    rates = ((series, one.samples_per_s.times(1 / samples)) for series, one in rows)
    traces = (
        _bar(series, rate.value, unit, error_x=whiskers(rate.value, rate.low, rate.high))
        for series, rate in rates
    )
    return _figure(
        "rate",
        "How fast",
        f"{unit.capitalize()} that were applied; whiskers: 95% interval.",
        **_bars(traces, axis(unit, rangemode="tozero"), len(rows)),
    )


def _activity_bars(rows: Rows) -> Figure:
    traces: list[Trace] = []
    for series, one in rows:
        wait, computing = one.wait_fraction.value, one.computing_fraction
        dropped = one.lost_worker_hours.value / one.worker_hours - wait
        shares = (computing, dropped, 1 - computing - dropped - wait, wait)
        for (activity, percent), share in zip(ACTIVITIES, shares, strict=True):
            color = {"color": series.pale(percent)}
            trace = _bar(series, 100 * max(0.0, share), f"% {activity}", marker=color)
            traces.append(trace | {"showlegend": activity == "computing"})
    return _figure(
        "time",
        "Where the time went",
        "Share of all workers' time, in %: computing (full colour), computing pushes that were"
        " dropped, transferring, and waiting, each paler.",
        **_bars(traces, axis("% of the time"), len(rows)),
    )


def _trade_off(rows: Rows, unit: str, samples: int) -> Figure:
    rates = [(series, one, one.samples_per_s.times(1 / samples)) for series, one in rows]
    traces: list[Trace] = [
        {
            **series.trace,
            "type": "scatter",
            "mode": "markers",
            "marker": {"color": series.color, "size": 11},
            "x": numbers([one.staleness_mean.value]),
            "y": numbers([rate.value]),
            "error_y": whiskers(rate.value, rate.low, rate.high),
            "hovertemplate": f"{plain(series.label)}: %{{y}} at %{{x}}<extra></extra>",
        }
        for series, one, rate in rates
    ]
    return _figure(
        "trade-off",
        "Speed against staleness",
        "To the upper left is better. What staleness costs in accuracy is not known here.",
        traces=traces,
        layout={"xaxis": STALENESS, "yaxis": axis(unit, rangemode="tozero")},
    )


def _ranks(times: Steps) -> Figure:
    low, middle, high = (
        [float(np.quantile(seconds, share)) for seconds in times.values()]
        for share in (0.05, 0.5, 0.95)
    )
    trace: Trace = {
        "name": "median of a rank",
        "type": "scatter",
        "mode": "markers",
        "marker": {"color": "$text", "size": 6},
        "x": [plain(rank) for rank in times],
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
    return _figure(
        "ranks",
        "Step times of the ranks",
        "As measured, in seconds: median, and from the 5th to the 95th percentile.",
        traces=[trace],
        layout={"xaxis": {"type": "category"}, "yaxis": axis("seconds", rangemode="tozero")},
    )


def _waiting(rows: Rows) -> Figure:
    traces = []
    for series, one in rows:
        percent = [100 * share for share in one.waiting.values()]
        traces.append(_lines(series, list(map(plain, one.waiting)), percent, "%", 5))
    return _figure(
        "waiting",
        "Who waits",
        "Share of each rank's own time that it waits, in %. Those that do not wait are waited for.",
        traces=traces,
        layout={"xaxis": {"type": "category"}, "yaxis": axis("% of its time", rangemode="tozero")},
        wide=True,
    )


def _curves(
    curves: Sequence[Curve], labels: Sequence[str], unit: str, samples: int
) -> Iterator[Figure]:
    for varied, of_axis in groupby(curves, key=lambda curve: curve.axis):
        traces: list[Trace] = []
        for curve in of_axis:
            series = Series(curve.candidate.label, (), labels.index(curve.candidate.label))
            x = numbers([_in_unit(varied, point.at) for point in curve.points])
            y = [point.samples_per_s / samples for point in curve.points]
            trace = _lines(series, x, y, f"{unit}, %{{customdata}} %", 6)
            efficiency = numbers([100 * point.efficiency for point in curve.points])
            traces.append(trace | {"customdata": efficiency})
        ticks = numbers([_in_unit(varied, at) for at in varied.points])
        title = f"{varied.noun} (Mbit/s)" if varied.name == "link" else varied.noun
        yield _figure(
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
