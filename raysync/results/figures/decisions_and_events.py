"""The figures of decisions and events: predicted waits, grants, switches and departures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raysync.results.figures.downsample import POINTS, even_indices, extreme_indices
from raysync.results.figures.journal_events import Happening
from raysync.results.figures.primitives import (
    Figure,
    Series,
    Trace,
    axis,
    heading,
    numbers,
    plain,
    row_names,
    rows_layout,
    rule,
)

SECTION = "What was decided, what happened"

MEASURED = ("controller", "waited")  # notes with a figure of their own

# kind -> symbol; notes of other kinds have the next of `NOTE_SYMBOLS`
SYMBOLS = {
    "switch": "diamond",
    "left": "x",
    "joined": "triangle-up",
    "remark": "square",
    "resumed": "triangle-right",
}

NOTE_SYMBOLS = ("circle", "star", "cross", "hexagon", "triangle-down", "pentagon")
GLYPHS = {
    "diamond": "◆",
    "x": "✕",
    "triangle-up": "▲",
    "square": "■",
    "circle": "●",
    "star": "★",
    "cross": "✚",
    "hexagon": "⬢",
    "triangle-down": "▼",
    "triangle-right": "▶",
    "pentagon": "⬟",
}


def figures(all_series: Sequence[Series]) -> list[Figure]:
    return [*_predicted(all_series), *_granted(all_series), *_happenings(all_series)]


def _notes(series: Series, kind: str) -> list[Happening]:
    """Return the notes of a kind in all its runs."""
    return [note for events in series.run_events for note in events.of(kind)]


def _scatter(series: Series, x: Sequence[float], y: Sequence[float], template: str) -> Trace:
    keep = extreme_indices(np.asarray(y), POINTS)
    return {
        **series.trace,
        "type": "scatter",
        "mode": "markers",
        "marker": {"color": series.pale(60), "size": 7},
        "cliponaxis": False,
        "x": numbers(np.asarray(x)[keep]),
        "y": numbers(np.asarray(y)[keep]),
        "hovertemplate": template,
    }


def _predicted(all_series: Sequence[Series]) -> list[Figure]:
    traces: list[Trace] = []
    for series in all_series:
        pairs = [
            (predicted, actual)
            for note in _notes(series, "waited")
            if (predicted := note.number("predicted_wait_s")) is not None
            and (actual := note.number("actual_wait_s")) is not None
        ]
        if pairs:
            x, y = zip(*sorted(pairs), strict=True)
            traces.append(_scatter(series, x, y, "predicted %{x} s<br>actual %{y} s"))
    if not traces:
        return []
    top = max(value for trace in traces for axis_name in "xy" for value in trace[axis_name])
    return [
        Figure(
            key="predicted-wait",
            section=SECTION,
            title="Predicted and actual waits",
            caption="Each point one wait that the controller predicted, in seconds; on the dotted"
            " line it was right.",
            traces=traces,
            layout={
                "xaxis": axis("predicted wait (s)", rangemode="tozero"),
                "yaxis": axis("actual wait (s)", rangemode="tozero"),
                "shapes": [rule((0, top), (0, top))],
            },
        )
    ]


def _granted(all_series: Sequence[Series]) -> list[Figure]:
    traces: list[Trace] = []
    for series in all_series:
        calls = sorted(
            (note.at, granted)
            for note in _notes(series, "controller")
            if (granted := note.number("extra")) is not None
        )
        if calls:
            at, extra = zip(*calls, strict=True)
            traces.append(_scatter(series, at, extra, "r* = %{y}<br>%{x} s"))
    if not traces:
        return []
    return [
        Figure(
            key="granted",
            section=SECTION,
            title="Extra iterations granted, r*",
            caption="Iterations that each call of the controller granted to the fastest worker,"
            " against seconds; all seeds.",
            traces=traces,
            layout={
                "xaxis": axis("seconds", rangemode="tozero"),
                "yaxis": axis("iterations", rangemode="tozero"),
            },
        )
    ]


def _events_on_lanes(series: Series) -> list[tuple[int, Happening]]:
    """Return (index of the run, event) without initial joins and `MEASURED` notes."""
    return [
        (index, event)
        for index, events in enumerate(series.run_events)
        for event in events.happenings
        if event.kind not in MEASURED and not (event.kind == "joined" and event.at <= 0)
    ]


def _happenings(all_series: Sequence[Series]) -> list[Figure]:
    events = {series.index: _events_on_lanes(series) for series in all_series}
    kinds = sorted({event.kind for pairs in events.values() for _, event in pairs})
    if not kinds:
        return []
    notes = iter(NOTE_SYMBOLS * len(kinds))
    symbols = {kind: SYMBOLS.get(kind) or next(notes) for kind in kinds}
    traces: list[Trace] = []
    rows = 0
    for series in all_series:
        happened = events[series.index]
        names = row_names(series, dict.fromkeys(_lane(series, index) for index, _ in happened))
        rows += len(names) + 1 if names else 0
        traces += [heading(series, names, [0.0])] if names else []
        for kind in kinds:
            pairs = [(index, event) for index, event in happened if event.kind == kind]
            pairs = [pairs[index] for index in even_indices(len(pairs))]
            if pairs:
                traces.append(
                    {
                        **series.trace,
                        "type": "scatter",
                        "mode": "markers",
                        "x": numbers([event.at for _, event in pairs]),
                        "y": [names[_lane(series, index)] for index, _ in pairs],
                        "text": [plain(event.text) for _, event in pairs],
                        "marker": {"symbol": symbols[kind], "size": 11, "color": series.color},
                        "showlegend": kind == min(event.kind for _, event in happened),
                        "hovertemplate": "%{text}<br>%{x} s",
                    }
                )
    legend = ", ".join(f"{GLYPHS[symbol]} {plain(kind)}" for kind, symbol in symbols.items())
    return [
        Figure(
            key="happenings",
            section=SECTION,
            title="What happened",
            caption=f"Events and decisions of each run against seconds: {legend}.",
            traces=traces,
            layout={"xaxis": axis("seconds", rangemode="tozero"), **rows_layout(rows)},
            wide=True,
        )
    ]


def _lane(series: Series, index: int) -> str:
    return f"seed {series.runs[index].seed}"
