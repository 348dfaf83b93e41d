"""The parts of figures: the runs of a paradigm, and traces and layouts as data for plotly.js.

The Python package `plotly` would refuse the names of colours (`$0`, `$text`), which the page
replaces by the reader's theme, and `colours.painted` in a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from raysync.core.ids import WorkerId
from raysync.results.collection import CollectedRun
from raysync.results.figures.colours import DASHES, HUES
from raysync.results.figures.downsample import Floats
from raysync.results.figures.journal_events import RunEvents, run_events_of

Trace = dict[str, Any]

ROW_PX = 22  # the height of a lane or a bar
AROUND_PX = 80  # the height above and below lanes
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'

_AXIS = {
    "automargin": True,
    "gridcolor": "$grid",
    "linecolor": "$edge",
    "zeroline": False,
    "showline": False,
    "tickfont": {"size": 12},
    "exponentformat": "SI",
}
_TITLE = {"standoff": 8, "font": {"size": 12.5, "color": "$muted"}}

INVISIBLE = "\u2060"  # each paradigm appends another number of it: no two lanes have one name


@dataclass(frozen=True)
class View:
    label: str
    low: float
    high: float
    axis: str = "xaxis"


@dataclass(frozen=True)
class Figure:
    key: str  # the name in file names and anchors
    section: str
    title: str
    caption: str  # a line: the contents and their unit
    traces: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict)
    wide: bool = False  # whether it takes the whole width of a page
    views: tuple[View, ...] = ()  # alternative ranges; the first is the initial one

    @property
    def height(self) -> int:
        """The figure's height in pixels."""
        return int(self.layout.get("height", 340))


@dataclass(frozen=True)
class Series:
    """A paradigm of a scenario, with one colour in all figures."""

    label: str
    runs: tuple[CollectedRun, ...]
    index: int  # the number of its colour and dash

    @property
    def color(self) -> str:
        return f"${self.index % HUES}"

    def pale(self, percent: int) -> str:
        """Return the colour with this opacity, for bands and minor parts of a bar."""
        return f"{self.color}/{percent}" if percent < 100 else self.color

    @property
    def trace(self) -> Trace:
        """The attributes of all its traces."""
        return {"name": plain(self.label), "legendgroup": str(self.index)}

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.color, "width": 2, "dash": DASHES[self.index // HUES % len(DASHES)]}

    @property
    def regular(self) -> tuple[CollectedRun, ...]:
        """The runs to average: those that ended by themselves, or else those that were ended."""
        ended = tuple(run for run in self.runs if run.end.kind in ("done", "reached"))
        return ended or tuple(run for run in self.runs if run.end.kind == "cut")

    @property
    def others(self) -> tuple[CollectedRun, ...]:
        """The rest, such as diverged runs; stopped ones beside finished ones."""
        return tuple(run for run in self.runs if run not in self.regular)

    @cached_property
    def pushes(self) -> tuple[pd.DataFrame, ...]:
        """Each run's pushes, with a `slot`; times are seconds since the first release."""
        return tuple(map(_pushes, self.runs))

    @property
    def regular_pushes(self) -> list[pd.DataFrame]:
        pairs = zip(self.runs, self.pushes, strict=True)
        return [pushes for run, pushes in pairs if run in self.regular]

    @cached_property
    def run_events(self) -> tuple[RunEvents, ...]:
        """Each run's other events, in seconds since the first release."""
        return tuple(run_events_of(run.record, run.started_at) for run in self.runs)


def _pushes(run: CollectedRun) -> pd.DataFrame:
    frame = run.record.pushes
    slots = {worker: WorkerId(worker).slot for worker in frame.worker.unique()}
    times = [f"{event}_at_s" for event in ("released", "computed", "pushed", "applied")]
    return frame.assign(
        slot=frame.worker.map(slots), **(frame[times] - run.started_at)
    ).sort_values("pushed_at_s", kind="stable", ignore_index=True)


def plain(text: object) -> str:
    """Escape a text of the user, in which Plotly would read markup."""
    return escape(str(text), quote=False)


def numbers(values: ArrayLike, digits: int = 4) -> list[float | int | None]:
    """Round values to significant digits for JSON; infinity and NaN become null."""
    return [_rounded(float(value), digits) for value in np.asarray(values, dtype=float)]


def _rounded(value: float, digits: int) -> float | int | None:
    if not np.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def scatter(series: Series, mode: str, **more: Any) -> Trace:
    """Return a trace of a paradigm: "lines", "markers" or "text"."""
    return {**series.trace, "type": "scatter", "mode": mode, **more}


def bar(series: Series, **more: Any) -> Trace:
    return {**series.trace, "type": "bar", "marker": {"color": series.color}, **more}


def line(series: Series, x: ArrayLike, y: ArrayLike, **more: Any) -> Trace:
    attributes = {"mode": "lines", "line": series.line, **more}
    return scatter(series, x=numbers(x), y=numbers(y), **attributes)


def band(series: Series, x: Floats, low: Floats, high: Floats) -> Trace:
    return line(
        series,
        np.concatenate([x, x[::-1]]),
        np.concatenate([high, low[::-1]]),
        line={"width": 0, "color": series.color},
        fill="toself",
        fillcolor=series.pale(18),
        hoverinfo="skip",
        showlegend=False,
    )


def curve(series: Series, x: Floats, values: Floats, **more: Any) -> list[Trace]:
    """Return the mean over the runs, and the band from minimum to maximum of several.

    Without points, there is nothing to draw.

    Args:
        series: the paradigm.
        x: (points,).
        values: (runs, points).
        more: attributes of the mean's trace.
    """
    if not len(x):
        return []
    mean = line(series, x, values.mean(axis=0), **more)
    if len(values) == 1:
        return [mean]
    return [band(series, x, values.min(axis=0), values.max(axis=0)), mean]


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis; the title names the unit."""
    return {"title": {"text": title}, **more}


def axes_from_zero(x: str, y: str) -> dict[str, Any]:
    return {"xaxis": axis(x, rangemode="tozero"), "yaxis": axis(y, rangemode="tozero")}


def whiskers(value: float, low: float | None, high: float | None) -> dict[str, Any]:
    """Return the error bar of an interval, invisible without one."""
    if low is None or high is None:
        return {"visible": False}
    return {
        "type": "data",
        "symmetric": False,
        "array": numbers([high - value]),
        "arrayminus": numbers([value - low]),
        "color": "$text",
        "thickness": 1.5,
    }


def rows_layout(rows: int) -> dict[str, Any]:
    """Return the layout of a figure with lanes, the first on top.

    The page shrinks it when a paradigm is hidden.
    """
    lanes = {
        "type": "category",
        "range": [rows - 0.5, -0.5],
        "showgrid": False,
        "fixedrange": True,
        "ticksuffix": " ",
    }
    return {"height": rows * ROW_PX + AROUND_PX, "yaxis": lanes}


def row_names(series: Series, names: Iterable[str]) -> dict[str, str]:
    """Return lane -> category, unique over the paradigms by invisible characters."""
    return {name: f"{plain(name)}{INVISIBLE * series.index}" for name in names}


def heading(series: Series, names: Mapping[str, str], at: Sequence[float]) -> Trace:
    """Return a trace that creates a paradigm's lanes in order: its name, then its workers.

    Args:
        series: the paradigm.
        names: lane -> category.
        at: positions of the name on the x axis, one for each view.
    """
    return scatter(
        series,
        "text",
        showlegend=False,
        hoverinfo="skip",
        cliponaxis=False,
        x=[*at, *[at[0]] * len(names)],
        y=[*[INVISIBLE * (series.index + 1)] * len(at), *names.values()],
        text=[*[f"<b>{plain(series.label)}</b>"] * len(at), *[""] * len(names)],
        textposition="middle right",
        textfont={"color": "$text"},
    )


def rule(x: tuple[float, float], y: tuple[float, float], **more: Any) -> dict[str, Any]:
    """Return a dotted line below the traces."""
    return {
        "type": "line",
        "x0": x[0],
        "x1": x[1],
        "y0": y[0],
        "y1": y[1],
        "layer": "below",
        "line": {"color": "$muted", "width": 1, "dash": "dot"},
        **more,
    }


def caption(*sentences: str) -> str:
    """Join the sentences of a caption, without empty ones."""
    return " ".join(filter(None, sentences))


def over_seeds(all_series: Sequence[Series]) -> str:
    """Explain curves over several runs, for a caption."""
    several = any(len(series.regular) > 1 for series in all_series)
    return "Line: mean over seeds; band: lowest to highest seed." if several else ""


def layout_of(figure: Figure) -> dict[str, Any]:
    """Return a figure's Plotly layout without width, legends and titles, which the page adds."""
    axes = {
        name: _AXIS | axis | ({"title": _TITLE | axis["title"]} if "title" in axis else {})
        for name, axis in figure.layout.items()
        if name.endswith("axis")
    }
    shared = {
        "height": figure.height,
        "autosize": True,
        "showlegend": False,
        "hovermode": "closest",
        "margin": {"l": 48, "r": 12, "t": 30, "b": 40},
        "font": {"family": FONT, "size": 13, "color": "$text"},
        "paper_bgcolor": "$card",
        "plot_bgcolor": "$card",
        "hoverlabel": {
            "bgcolor": "$card",
            "bordercolor": "$edge",
            "font": {"color": "$text", "size": 13},
            "namelength": 32,
        },
        "modebar": {"bgcolor": "$card/0", "color": "$muted", "activecolor": "$text"},
    }
    return {**shared, **figure.layout, **axes}
