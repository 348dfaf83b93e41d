"""The figures of lead and staleness, over time and as distributions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from raysync.results.figures.downsample import POINTS, binned, shares_up_to
from raysync.results.figures.primitives import (
    Figure,
    Series,
    Trace,
    axis,
    caption,
    curve,
    line,
    over_seeds,
)

SECTION = "How far apart, how stale"

LEAD = ("lead", "max", "Lead", "clocks ahead of the slowest worker, at each release")
STALENESS = (
    "staleness",
    "mean",
    "Version staleness",
    "versions applied between a push's weights and its own update",
)


def figures(all_series: Sequence[Series]) -> list[Figure]:
    """Return the figures of a scenario, except for a measure that is always 0."""
    return [
        figure
        for column, how, title, what in (LEAD, STALENESS)
        if _top(all_series, column) > 0
        for figure in (
            _over_time(all_series, column, how, title, what),
            _distribution(all_series, column, title, what),
        )
    ]


def _top(all_series: Sequence[Series], column: str) -> float:
    return max(
        (
            float(frame[column].max())
            for series in all_series
            for frame in series.pushes
            if frame[column].notna().any()
        ),
        default=0.0,
    )


def _of(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    return frame[frame.outcome == "applied"] if column == "staleness" else frame


def _over_time(
    all_series: Sequence[Series], column: str, how: str, title: str, what: str
) -> Figure:
    traces: list[Trace] = []
    unit = "clocks" if column == "lead" else "versions"
    over = over_seeds(all_series)
    for series in all_series:
        frames = [
            _of(frame, column)
            for run, frame in zip(series.runs, series.pushes, strict=True)
            if run in series.regular
        ]
        if not frames:
            frames = [_of(frame, column) for frame in series.pushes][:1]
        workers = max((frame.slot.nunique() for frame in frames), default=1)
        bins = int(
            np.clip(min(map(len, frames), default=0) // (3 * max(1, workers)), 1, POINTS // 2)
        )
        when = "released_at_s" if column == "lead" else "applied_at_s"
        middles, values = binned(
            [frame[when] for frame in frames], [frame[column] for frame in frames], how, bins
        )
        traces += (
            curve(series, middles, values, hovertemplate=f"%{{y}} {unit} at %{{x}} s")
            if len(middles)
            else []
        )
    aggregate = "The largest" if how == "max" else "The mean"
    return Figure(
        key=f"{column}-time",
        section=SECTION,
        title=f"{title} over time",
        caption=caption(f"{aggregate} {title.lower()} in each stretch of the run: {what}.", over),
        traces=traces,
        layout={
            "xaxis": axis("seconds", rangemode="tozero"),
            "yaxis": axis(unit, rangemode="tozero"),
        },
    )


def _distribution(all_series: Sequence[Series], column: str, title: str, what: str) -> Figure:
    unit = "clocks" if column == "lead" else "versions"
    top = _top(all_series, column)
    traces: list[Trace] = []
    for series in all_series:
        pooled = pd.concat([_of(frame, column)[column] for frame in series.pushes]).dropna()
        if not len(pooled):
            continue
        values, shares = shares_up_to(pooled)
        x, y = np.concatenate([[values[0]], values, [top]]), np.concatenate([[0.0], shares, [1.0]])
        traces.append(
            line(series, x, 100 * y, hovertemplate=f"%{{y}} % of pushes: at most %{{x}} {unit}")
            | {"line": {**series.line, "shape": "hv"}}
        )
    return Figure(
        key=f"{column}-distribution",
        section=SECTION,
        title=f"{title}, distribution",
        caption=f"Share of pushes, in %, with at most that many {unit}"
        + (", all seeds together." if any(len(series.runs) > 1 for series in all_series) else "."),
        traces=traces,
        layout={
            "xaxis": axis(unit, rangemode="tozero"),
            "yaxis": axis("% of pushes", range=[0, 102]),
        },
    )
