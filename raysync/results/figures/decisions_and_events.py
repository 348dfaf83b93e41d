"""The figures of decisions and events: predicted waits, grants, switches and departures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd

from raysync.results.figures.downsample import even_indices, extreme_indices
from raysync.results.figures.journal_events import Happening
from raysync.results.figures.primitives import (
    Figure,
    Series,
    Trace,
    axes_from_zero,
    axis,
    heading,
    numbers,
    plain,
    row_names,
    rows_layout,
    rule,
    scatter,
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
    return [_predicted(all_series), _granted(all_series), _happenings(all_series)]


def _note_traces(
    all_series: Sequence[Series],
    kind: str,
    point_of: Callable[[Happening], tuple[float | None, float | None]],
    template: str,
) -> list[Trace]:
    """Draw a point for each note of a kind that has both numbers, in all runs."""
    traces = []
    for series in all_series:
        notes = [note for events in series.run_events for note in events.of(kind)]
        found = pd.DataFrame(map(point_of, notes), columns=["x", "y"], dtype=float).dropna()
        points = found.sort_values(["x", "y"])
        if len(points):
            points = points.iloc[extreme_indices(points.y)]
            traces.append(
                scatter(
                    series,
                    "markers",
                    marker={"color": series.pale(60), "size": 7},
                    cliponaxis=False,
                    x=numbers(points.x),
                    y=numbers(points.y),
                    hovertemplate=template,
                )
            )
    return traces


def _predicted(all_series: Sequence[Series]) -> Figure:
    traces = _note_traces(
        all_series,
        "waited",
        lambda note: (note.number("predicted_wait_s"), note.number("actual_wait_s")),
        "predicted %{x} s<br>actual %{y} s",
    )
    top = max((value for trace in traces for name in "xy" for value in trace[name]), default=0)
    return Figure(
        key="predicted-wait",
        section=SECTION,
        title="Predicted and actual waits",
        caption="Each point one wait that the controller predicted, in seconds; on the dotted"
        " line it was right.",
        traces=traces,
        layout={
            **axes_from_zero("predicted wait (s)", "actual wait (s)"),
            "shapes": [rule((0, top), (0, top))],
        },
    )


def _granted(all_series: Sequence[Series]) -> Figure:
    return Figure(
        key="granted",
        section=SECTION,
        title="Extra iterations granted, r*",
        caption="Iterations that each call of the controller granted to the fastest worker,"
        " against seconds; all seeds.",
        traces=_note_traces(
            all_series,
            "controller",
            lambda note: (note.at, note.number("extra")),
            "r* = %{y}<br>%{x} s",
        ),
        layout=axes_from_zero("seconds", "iterations"),
    )


def _events_on_lanes(series: Series) -> list[tuple[str, Happening]]:
    """Return (lane of the run, event) without initial joins and `MEASURED` notes."""
    return [
        (f"seed {run.seed}", event)
        for run, events in zip(series.runs, series.run_events, strict=True)
        for event in events.happenings
        if event.kind not in MEASURED and not (event.kind == "joined" and event.at <= 0)
    ]


def _happenings(all_series: Sequence[Series]) -> Figure:
    events = {series.index: _events_on_lanes(series) for series in all_series}
    kinds = sorted({event.kind for pairs in events.values() for _, event in pairs})
    notes = iter(NOTE_SYMBOLS * len(kinds))
    symbols = {kind: SYMBOLS.get(kind) or next(notes) for kind in kinds}
    traces: list[Trace] = []
    rows = 0
    for series in all_series:
        happened = events[series.index]
        names = row_names(series, dict.fromkeys(lane for lane, _ in happened))
        rows += len(names) + 1 if names else 0
        traces += [heading(series, names, [0.0])] if names else []
        for kind in kinds:
            pairs = [pair for pair in happened if pair[1].kind == kind]
            pairs = [pairs[index] for index in even_indices(len(pairs))]
            if pairs:
                traces.append(
                    scatter(
                        series,
                        "markers",
                        x=numbers([event.at for _, event in pairs]),
                        y=[names[lane] for lane, _ in pairs],
                        text=[plain(event.text) for _, event in pairs],
                        marker={"symbol": symbols[kind], "size": 11, "color": series.color},
                        showlegend=kind == min(event.kind for _, event in happened),
                        hovertemplate="%{text}<br>%{x} s",
                    )
                )
    legend = ", ".join(f"{GLYPHS[symbol]} {plain(kind)}" for kind, symbol in symbols.items())
    return Figure(
        key="happenings",
        section=SECTION,
        title="What happened",
        caption=f"Events and decisions of each run against seconds: {legend}.",
        traces=traces,
        layout={"xaxis": axis("seconds", rangemode="tozero"), **rows_layout(rows)},
        wide=True,
    )
