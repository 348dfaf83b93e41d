"""What all figures are made of: the runs of a paradigm, traces and layouts in Plotly's format, and
numbers with as many digits as a screen shows.

A figure is plain data for plotly.js (https://plotly.com/javascript/reference/). The Python package
`plotly` would save no lines, and refuses the names of colours (`$0`, `$text`), to which the page
gives their value in the reader's theme, and `colours.painted` in a picture. The tests check every
figure against its schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from raysync.core.ids import WorkerId
from raysync.results.collection import CollectedRun
from raysync.results.figures.colours import DASHES, HUES
from raysync.results.figures.journal_events import Story, story_of

Trace = dict[str, Any]
Floats = NDArray[np.float64]

ROW_PX = 22
"""The height of a lane or a bar."""

AROUND_PX = 80
"""The height that a figure with lanes needs above and below them."""

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

INVISIBLE = "\u2060"
"""Categories of an axis with the same text differ in how many of these they end in."""


@dataclass(frozen=True)
class View:
    """A part of a figure that a button shows."""

    label: str
    low: float
    high: float
    axis: str = "xaxis"


@dataclass(frozen=True)
class Figure:
    """One figure."""

    key: str
    """Its name in file names and in the page's anchors."""
    section: str
    title: str
    caption: str
    """One line: what is shown, and its unit."""
    traces: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict)
    wide: bool = False
    """Whether it takes the whole width of a page."""
    views: tuple[View, ...] = ()
    """Its parts; the first is shown at first."""

    @property
    def height(self) -> int:
        """The height in pixels."""
        return int(self.layout.get("height", 340))


@dataclass(frozen=True)
class Series:
    """A paradigm of a scenario: it has one colour in all figures, and a reader can hide it."""

    label: str
    runs: tuple[CollectedRun, ...]
    index: int
    """The number that gives it its colour and dash."""

    @property
    def color(self) -> str:
        """The colour of lines and points."""
        return f"${self.index % HUES}"

    def pale(self, percent: int) -> str:
        """Return the colour, only partly opaque: for bands and the lesser parts of a bar."""
        return f"{self.color}/{percent}"

    @property
    def trace(self) -> Trace:
        """The attributes that every trace of the series has."""
        return {"name": plain(self.label), "legendgroup": str(self.index)}

    @property
    def line(self) -> dict[str, Any]:
        """The line of its curves."""
        return {"color": self.color, "width": 2, "dash": DASHES[self.index // HUES % len(DASHES)]}

    @property
    def regular(self) -> tuple[CollectedRun, ...]:
        """The runs that curves are averaged over: those that finished; if none did, those that were
        stopped.
        """
        finished = tuple(run for run in self.runs if run.status == "finished")
        return finished or tuple(run for run in self.runs if run.status == "stopped")

    @property
    def others(self) -> tuple[CollectedRun, ...]:
        """The rest: diverged, failed, unfinished (and stopped, beside finished ones)."""
        return tuple(run for run in self.runs if run not in self.regular)

    @cached_property
    def pushes(self) -> tuple[pd.DataFrame, ...]:
        """The pushes of each run, with times in seconds since the first release; `slot` is the
        worker without its life.
        """
        return tuple(map(_pushes, self.runs))

    @cached_property
    def stories(self) -> tuple[Story, ...]:
        """What the journal of each run holds beside the pushes, with times in seconds since the
        first release.
        """
        return tuple(story_of(run.record, started_at(run)) for run in self.runs)


def started_at(run: CollectedRun) -> float:
    """Return the first release, in seconds since the run began; 0 if no worker was released."""
    pushes = run.record.pushes
    return float(pushes.released_at_s.min()) if len(pushes) else 0.0


def _pushes(run: CollectedRun) -> pd.DataFrame:
    start = started_at(run)
    frame = run.record.pushes
    slots = {worker: WorkerId(worker).slot for worker in frame.worker.unique()}
    return frame.assign(
        slot=frame.worker.map(slots),
        released_at_s=frame.released_at_s - start,
        computed_at_s=frame.computed_at_s - start,
        pushed_at_s=frame.pushed_at_s - start,
        applied_at_s=frame.applied_at_s - start,
    ).sort_values("pushed_at_s", kind="stable", ignore_index=True)


def plain(text: object) -> str:
    """Escape a text of the user, in which Plotly would read markup."""
    return escape(str(text), quote=False)


def numbers(values: ArrayLike, digits: int = 4) -> list[float | int | None]:
    """Round values to so many significant digits for JSON, since no screen shows more; what is not
    finite becomes null.
    """
    return [_short(float(value), digits) for value in np.asarray(values, dtype=float)]


def _short(value: float, digits: int) -> float | int | None:
    if not np.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def line(series: Series, x: ArrayLike, y: ArrayLike, **more: Any) -> Trace:
    """Return a curve of a series."""
    return {
        **series.trace,
        "type": "scatter",
        "mode": "lines",
        "line": series.line,
        "x": numbers(x),
        "y": numbers(y),
        **more,
    }


def band(series: Series, x: ArrayLike, low: ArrayLike, high: ArrayLike) -> Trace:
    """Return the area between two curves."""
    forth, low, high = np.asarray(x), np.asarray(low), np.asarray(high)
    return {
        **series.trace,
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 0, "color": series.color},
        "fill": "toself",
        "fillcolor": series.pale(18),
        "hoverinfo": "skip",
        "showlegend": False,
        "x": numbers(np.concatenate([forth, forth[::-1]])),
        "y": numbers(np.concatenate([high, low[::-1]])),
    }


def curve(series: Series, x: Floats, values: Floats, **more: Any) -> list[Trace]:
    """Return the mean over the runs, and the band from the lowest to the highest where there are
    several.

    Args:
        series: the paradigm.
        x: an array of shape (points,).
        values: an array of shape (runs, points).
        more: further attributes of the mean's trace.
    """
    mean = line(series, x, values.mean(axis=0), **more)
    return (
        [mean]
        if len(values) == 1
        else [band(series, x, values.min(axis=0), values.max(axis=0)), mean]
    )


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with its title, which names the unit."""
    return {"title": {"text": title}, **more}


def whiskers(value: float, low: float | None, high: float | None) -> dict[str, Any]:
    """Return the error bar of an interval; none is drawn where there is no interval."""
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
    """Return the layout of a figure with so many lanes, the first on top; the page makes it smaller
    when a paradigm is hidden.
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
    """Return lane -> its category, which differs from that of another paradigm's lane of the same
    name by invisible characters.
    """
    return {name: f"{plain(name)}{INVISIBLE * series.index}" for name in names}


def heading(series: Series, names: Mapping[str, str], at: Sequence[float]) -> Trace:
    """Return a trace that creates the lanes of a paradigm, in order: one for its name, then those
    of its workers. It is drawn before what is in them.

    Args:
        series: the paradigm.
        names: lane -> category.
        at: where along the x axis its name stands: once for each part that a view shows.
    """
    return {
        **series.trace,
        "type": "scatter",
        "mode": "text",
        "showlegend": False,
        "hoverinfo": "skip",
        "cliponaxis": False,
        "x": [*at, *[at[0]] * len(names)],
        "y": [*[INVISIBLE * (series.index + 1)] * len(at), *names.values()],
        "text": [*[f"<b>{plain(series.label)}</b>"] * len(at), *[""] * len(names)],
        "textposition": "middle right",
        "textfont": {"color": "$text"},
    }


def rule(x: tuple[float, float], y: tuple[float, float], **more: Any) -> dict[str, Any]:
    """Return a dotted line from one point to another, below the traces."""
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
    """Return the sentences of a caption that say something."""
    return " ".join(filter(None, sentences))


def over_seeds(all_series: Sequence[Series]) -> str:
    """Say for a caption how several runs became one curve."""
    several = any(len(series.regular) > 1 for series in all_series)
    return "Line: mean over seeds; band: lowest to highest seed." if several else ""


def layout_of(figure: Figure) -> dict[str, Any]:
    """Return the Plotly layout of a figure, complete but for its width; the page adds legends and
    titles.
    """
    axes = {
        name: {
            **_AXIS,
            **axis,
            **({"title": {**_TITLE, **axis["title"]}} if "title" in axis else {}),
        }
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
