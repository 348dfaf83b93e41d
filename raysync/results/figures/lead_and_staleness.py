"""The figures of lead and staleness, over time and as distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from raysync.results.figures.downsample import POINTS, binned, shares_up_to
from raysync.results.figures.primitives import (
    Figure,
    Series,
    Trace,
    axes_from_zero,
    axis,
    caption,
    curve,
    line,
    over_seeds,
)

SECTION = "How far apart, how stale"


class Distance(NamedTuple):
    column: str  # in `Series.pushes`
    time: str  # the column with the time of each value
    how: str  # whether a stretch of a run is the "max" or the "mean" of its values
    title: str
    unit: str
    definition: str


LEAD = Distance(
    column="lead",
    time="released_at_s",
    how="max",
    title="Lead",
    unit="clocks",
    definition="clocks ahead of the slowest worker, at each release",
)
STALENESS = Distance(
    column="staleness",
    time="applied_at_s",
    how="mean",
    title="Version staleness",
    unit="versions",
    definition="versions applied between a push's weights and its own update",
)


def figures(all_series: Sequence[Series]) -> list[Figure]:
    """Return the figures of a scenario, except for a distance that is always 0."""
    return [
        draw(all_series, distance)
        for distance in (LEAD, STALENESS)
        if _largest(all_series, distance) > 0
        for draw in (_over_time, _distribution)
    ]


def _largest(all_series: Sequence[Series], distance: Distance) -> float:
    columns = (frame[distance.column] for series in all_series for frame in series.pushes)
    return max((float(column.max()) for column in columns if column.notna().any()), default=0.0)


def _over_time(all_series: Sequence[Series], distance: Distance) -> Figure:
    traces: list[Trace] = []
    for series in all_series:
        chosen = series.regular_pushes or series.pushes[:1]
        frames = [_measured(frame, distance) for frame in chosen]
        workers = max((frame.slot.nunique() for frame in frames), default=1)
        pushes = min(map(len, frames), default=0)
        bins = min(max(1, pushes // (3 * max(1, workers))), POINTS // 2)  # three pushes a worker
        middles, values = binned(
            [frame[distance.time] for frame in frames],
            [frame[distance.column] for frame in frames],
            distance.how,
            bins,
        )
        hover = f"%{{y}} {distance.unit} at %{{x}} s"
        traces += curve(series, middles, values, hovertemplate=hover)
    combined = "The largest" if distance.how == "max" else "The mean"
    return Figure(
        key=f"{distance.column}-time",
        section=SECTION,
        title=f"{distance.title} over time",
        caption=caption(
            f"{combined} {distance.title.lower()} in each stretch of the run:"
            f" {distance.definition}.",
            over_seeds(all_series),
        ),
        traces=traces,
        layout=axes_from_zero("seconds", distance.unit),
    )


def _distribution(all_series: Sequence[Series], distance: Distance) -> Figure:
    top, unit = _largest(all_series, distance), distance.unit
    traces: list[Trace] = []
    for series in all_series:
        frames = (_measured(frame, distance) for frame in series.pushes)
        pooled = pd.concat([frame[distance.column] for frame in frames]).dropna()
        if len(pooled):
            values, shares = shares_up_to(pooled)
            x = [values[0], *values, top]
            y = 100 * np.array([0.0, *shares, 1.0])
            hover = f"%{{y}} % of pushes: at most %{{x}} {unit}"
            steps = {**series.line, "shape": "hv"}
            traces.append(line(series, x, y, line=steps, hovertemplate=hover))
    return Figure(
        key=f"{distance.column}-distribution",
        section=SECTION,
        title=f"{distance.title}, distribution",
        caption=f"Share of pushes, in %, with at most that many {unit}"
        + (", all seeds together." if any(len(series.runs) > 1 for series in all_series) else "."),
        traces=traces,
        layout={
            "xaxis": axis(unit, rangemode="tozero"),
            "yaxis": axis("% of pushes", range=[0, 102]),
        },
    )


def _measured(frame: pd.DataFrame, distance: Distance) -> pd.DataFrame:
    """Return the pushes that have the distance: a dropped one has no staleness."""
    return frame[frame.outcome == "applied"] if distance is STALENESS else frame
