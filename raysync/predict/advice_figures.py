"""The figures of the page: what was timed, and how far the few best are behind the best."""

from __future__ import annotations

from raysync.predict.advise import Advice
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

SECTION = "Advice"


def figures_of(advice: Advice) -> list[Figure]:
    """Return the figures, in the order of the page."""
    return [_times(advice), _candidates(advice)]


def _times(advice: Advice) -> Figure:
    labels = list(advice.contenders)
    traces: list[Trace] = []
    for ranked in advice.time.ranked:
        series = Series(ranked.paradigm, (), labels.index(ranked.paradigm))
        value = ranked.value
        if value.mean is None:
            continue
        traces.append(
            {
                **series.trace,
                "type": "bar",
                "orientation": "h",
                "marker": {"color": series.color},
                "y": [plain(ranked.paradigm)],
                "x": numbers([value.mean]),
                "error_x": whiskers(value.mean, value.low, value.high),
                "hovertemplate": "%{x} s<extra></extra>",
            }
        )
    heading = advice.time.measure.heading
    return Figure(
        key="times",
        section=SECTION,
        title="The few best",
        caption=f"{heading}; whiskers: 95% interval of the mean over seeds.",
        traces=traces,
        layout={
            "barmode": "stack",
            "xaxis": axis("s", rangemode="tozero"),
            **rows_layout(len(traces)),
        },
        wide=True,
    )


def _candidates(advice: Advice) -> Figure:
    trace: Trace = {
        "name": "timed",
        "type": "scatter",
        "mode": "markers",
        "marker": {"color": "$muted", "size": 8},
        "x": numbers([each.staleness for each in advice.timed]),
        "y": numbers([each.seconds for each in advice.timed]),
        "text": [plain(each.candidate.label) for each in advice.timed],
        "hovertemplate": "%{text}: %{y} s at %{x}<extra></extra>",
    }
    return Figure(
        key="timed",
        section=SECTION,
        title="All that was timed",
        caption="Seconds of the whole work against mean staleness: to the lower left is better.",
        traces=[trace],
        layout={
            "xaxis": axis("mean staleness (versions)", rangemode="tozero"),
            "yaxis": axis("s", rangemode="tozero"),
        },
        wide=True,
    )
