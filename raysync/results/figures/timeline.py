"""The timeline of iterations, with a lane for each worker, as in Figure 1 of the LagTuner paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raysync.core.ids import Slot, WorkerId
from raysync.results.figures.journal_events import RunEvents
from raysync.results.figures.primitives import (
    Figure,
    Series,
    Trace,
    View,
    axis,
    bar,
    caption,
    heading,
    numbers,
    plain,
    row_names,
    rows_layout,
    scatter,
)
from raysync.results.figures.time_breakdown import slots_in_order

SECTION = "Iteration by iteration"
ROUNDS = 7  # iterations of the slowest worker in a view

MOST_LANES = 48  # the most workers of all paradigms together
FEWEST_LANES = 3  # the fewest workers of each paradigm, even if these are more than `MOST_LANES`

MOST_BARS = 1_200  # the most iterations in a view, of all paradigms: a view is narrowed to these

SHORTEST_S = 1e-9  # shorter bars are rounding errors


@dataclass(frozen=True)
class Lanes:
    """The lanes of one run."""

    series: Series
    pushes: pd.DataFrame
    events: RunEvents


def figure(all_series: Sequence[Series]) -> Figure | None:
    """Return the figure of a scenario: each paradigm's run with the smallest seed."""
    workers = max(FEWEST_LANES, MOST_LANES // max(1, len(all_series)))
    lanes = [
        Lanes(series, _few_workers(series.pushes[0], workers), series.run_events[0])
        for series in all_series
        if series.runs and len(series.pushes[0])
    ]
    if not lanes:
        return None
    views = _views(lanes)
    start = [views[0].low, views[0].high]
    rows, traces = 0, []
    for lane in lanes:
        names = row_names(lane.series, slots_in_order(lane.pushes.slot))
        rows += 1 + len(names)
        traces.append(heading(lane.series, names, [view.low for view in views]))
        traces += _bars(lane, names, views) + _decision_marks(lane, names, views)
    seeds = {lane.series.runs[0].seed for lane in lanes}
    notes = any(trace["type"] == "scatter" and trace["mode"] == "markers" for trace in traces)
    return Figure(
        key="timeline",
        section=SECTION,
        title="Timeline of iterations",
        caption=caption(
            "Each bar is an iteration, from its release: transfer (paler), computing (full colour),"
            " waiting (palest), in seconds.",
            "Triangles: decisions about a worker." if notes else "",
            f"Seed {seeds.pop()}." if len(seeds) == 1 else "",
        ),
        traces=traces,
        layout={
            "barmode": "overlay",
            "bargap": 0.25,
            **rows_layout(rows),
            "xaxis": axis("seconds since the first release", range=start),
        },
        wide=True,
        views=tuple(views),
    )


def _few_workers(pushes: pd.DataFrame, workers: int) -> pd.DataFrame:
    """Return the pushes of at most `workers` workers, from all groups in turn."""
    slots = pd.DataFrame({"slot": slots_in_order(pushes.slot)})
    slots["turn"] = slots.groupby(slots.slot.map(lambda slot: Slot(slot).group)).cumcount()
    return pushes[pushes.slot.isin(slots.sort_values("turn", kind="stable").slot.head(workers))]


def _views(lanes: Sequence[Lanes]) -> list[View]:
    """Return readable views: start, middle of the shortest run, first switch or departure."""
    frames = [lane.pushes for lane in lanes]
    lasts = [(frame.pushed_at_s + frame.wait_s).max() for frame in frames]
    steps = [
        (frame.pushed_at_s - frame.released_at_s).groupby(frame.slot).median().max()
        for frame in frames
    ]
    width = min(ROUNDS * float(max(steps)), float(max(lasts)))
    rate = sum(len(frame) / last for frame, last in zip(frames, lasts, strict=True) if last > 0)
    width = min(width, MOST_BARS / rate) if rate else width
    views = [View("start", 0.0, width)]
    middle = float(min(lasts)) / 2
    if middle > width:
        views.append(View("middle", middle, middle + width))
    first = min(
        (event for lane in lanes for event in lane.events.of("switch", "left") if event.at > width),
        key=lambda event: event.at,
        default=None,
    )
    if first is not None:
        label = "first switch" if first.kind == "switch" else "first departure"
        views.append(View(label, first.at - width / 2, first.at + width / 2))
    return views


def _are_visible(begin: pd.Series, end: pd.Series, views: Sequence[View]) -> pd.Series:
    return pd.Series(
        np.logical_or.reduce([(end >= view.low) & (begin <= view.high) for view in views]),
        index=begin.index,
    )


def _bars(lanes: Lanes, names: dict[str, str], views: Sequence[View]) -> list[Trace]:
    frame, series = lanes.pushes, lanes.series
    frame = frame[_are_visible(frame.released_at_s, frame.pushed_at_s + frame.wait_s, views)]
    computed = frame.computed_at_s
    began = (computed - frame.busy_s).clip(lower=frame.released_at_s)
    parts = [
        ("computing", began, computed - began, 100, _iteration_texts(frame)),
        ("pulling", frame.released_at_s, began - frame.released_at_s, 55, None),
        ("pushing", computed, frame.pushed_at_s - computed, 55, None),
        ("waiting", frame.pushed_at_s, frame.wait_s, 22, _wait_texts(lanes, frame)),
    ]
    traces: list[Trace] = []
    for activity, base, length, percent, texts in parts:
        drawn = length > SHORTEST_S
        if drawn.any():
            text = {} if texts is None else {"text": list(map(plain, texts[drawn]))}
            why = "<br>%{text}" if text else ""
            edge = {"color": "$card", "width": 1 if activity == "computing" else 0}
            traces.append(
                bar(
                    series,
                    orientation="h",
                    showlegend=activity == "computing",
                    marker={"color": series.pale(percent), "line": edge},
                    y=[names[slot] for slot in frame.slot[drawn]],
                    base=numbers(base[drawn], 7),
                    customdata=numbers(length[drawn]),
                    x=numbers(length[drawn], 7),
                    textposition="none",
                    hovertemplate=f"{activity} %{{customdata}} s{why}<extra></extra>",
                    **text,
                )
            )
    return traces


def _iteration_texts(frame: pd.DataFrame) -> pd.Series:
    stale = frame.staleness.map("{:.0f}".format, na_action="ignore").fillna(frame.outcome)
    return (
        "iteration "
        + frame["clock"].astype(str)
        + ", lead "
        + frame.lead.astype(str)
        + ", staleness "
        + stale
    )


def _wait_texts(lanes: Lanes, frame: pd.DataFrame) -> pd.Series:
    """Return why each push's worker was held; "": unknown."""
    holds = lanes.events.holds
    keys = zip(frame.worker, frame.pushed_at_s.round(6), strict=True)
    return pd.Series(
        [holds.get((worker, at), "") for worker, at in keys], index=frame.index, dtype=object
    )


def _decision_marks(lanes: Lanes, names: dict[str, str], views: Sequence[View]) -> list[Trace]:
    """Draw the notes about a worker on its lane."""
    decisions = [
        (event, names[slot])
        for event in lanes.events.happenings
        for slot in [WorkerId(event.worker).slot]
        if slot in names
        and event.kind not in ("joined", "waited")
        and any(view.low <= event.at <= view.high for view in views)
    ]
    if not decisions:
        return []
    edge = {"color": "$card", "width": 1}
    return [
        scatter(
            lanes.series,
            "markers",
            showlegend=False,
            marker={"symbol": "triangle-down", "size": 9, "color": "$text", "line": edge},
            x=numbers([event.at for event, _ in decisions], 7),
            y=[lane for _, lane in decisions],
            text=[plain(event.text).replace(", ", "<br>") for event, _ in decisions],
            hovertemplate="%{text}<br>at %{x} s<extra></extra>",
        )
    ]
