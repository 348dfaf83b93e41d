"""What all figures are made of: one paradigm's runs, traces as Plotly takes them, numbers as a
screen can show them.

A figure is plain data for plotly.js (https://plotly.com/javascript/reference/), so nothing has to
be installed to make a report; the tests check every one against the schema of the Python package
`plotly`. Colours are names (`$0`, `$text`): the page gives them their value in the reader's theme,
`colours.painted` for a picture.
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
from raysync.results.collection import Run
from raysync.results.figures.colours import DASHES, HUES
from raysync.results.figures.journal_events import Story, story_of

Trace = dict[str, Any]
Floats = NDArray[np.float64]

ROW_PX = 22
"""Height of a lane or a bar."""

AROUND_PX = 80
"""What a figure with lanes needs above and below them."""

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
"""Categories of an axis that read alike are told apart by how many of these they end in."""


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
    """In file names and in the page's anchors."""
    section: str
    title: str
    caption: str
    """One line: what is shown, and its unit."""
    traces: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict)
    wide: bool = False
    """It wants the whole width of a page."""
    views: tuple[View, ...] = ()
    """The first is shown at first."""

    @property
    def height(self) -> int:
        """In pixels."""
        return int(self.layout.get("height", 340))


@dataclass(frozen=True)
class Series:
    """One paradigm of a scenario: what a reader can hide, in one colour throughout."""

    label: str
    runs: tuple[Run, ...]
    index: int
    """Chooses colour and dash."""

    @property
    def color(self) -> str:
        """Of lines and points."""
        return f"${self.index % HUES}"

    def pale(self, percent: int) -> str:
        """The same, let through: of bands and lesser parts of a bar."""
        return f"{self.color}/{percent}"

    @property
    def trace(self) -> Trace:
        """What every trace of the series has."""
        return {"name": plain(self.label), "legendgroup": str(self.index)}

    @property
    def line(self) -> dict[str, Any]:
        """Of its curves."""
        return {"color": self.color, "width": 2, "dash": DASHES[self.index // HUES % len(DASHES)]}

    @property
    def regular(self) -> tuple[Run, ...]:
        """The runs that curves are averaged over: those that finished; if none did, those that were
        stopped.
        """
        finished = tuple(run for run in self.runs if run.status == "finished")
        return finished or tuple(run for run in self.runs if run.status == "stopped")

    @property
    def others(self) -> tuple[Run, ...]:
        """The rest: diverged, failed, unfinished (and stopped, beside finished ones)."""
        return tuple(run for run in self.runs if run not in self.regular)

    @cached_property
    def pushes(self) -> tuple[pd.DataFrame, ...]:
        """Of each run, its pushes: times in seconds since the first release; `slot` is the worker
        without its life.
        """
        return tuple(map(_pushes, self.runs))

    @cached_property
    def stories(self) -> tuple[Story, ...]:
        """Of each run, what its journal tells beside the pushes; times in seconds since the first
        release.
        """
        return tuple(story_of(run.record, started_at(run)) for run in self.runs)


def started_at(run: Run) -> float:
    """The first release, in seconds since the run began; 0 if nobody was released."""
    pushes = run.record.pushes
    return float(pushes.released_at_s.min()) if len(pushes) else 0.0


def _pushes(run: Run) -> pd.DataFrame:
    start = started_at(run)
    frame = run.record.pushes
    slots = {worker: WorkerId(worker).slot for worker in frame.worker.unique()}
    return frame.assign(
        slot=frame.worker.map(slots),
        released_at_s=frame.released_at_s - start,
        pushed_at_s=frame.pushed_at_s - start,
        applied_at_s=frame.applied_at_s - start,
    ).sort_values("pushed_at_s", kind="stable", ignore_index=True)


def plain(text: object) -> str:
    """Text of the user's, where Plotly would read markup."""
    return escape(str(text), quote=False)


def numbers(values: ArrayLike, digits: int = 4) -> list[float | int | None]:
    """Rounded to that many significant digits, for JSON: no screen shows more; null for what is not
    finite.
    """
    return [_short(float(value), digits) for value in np.asarray(values, dtype=float)]


def _short(value: float, digits: int) -> float | int | None:
    if not np.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() else rounded


def line(series: Series, x: ArrayLike, y: ArrayLike, **more: Any) -> Trace:
    """A curve of a series."""
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
    """The area between two curves."""
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
    """Mean over the runs, and the band from the lowest to the highest where there are several.

    Args:
        series: the paradigm.
        x: of shape (points,).
        values: of shape (runs, points).
        more: for the mean's trace.
    """
    mean = line(series, x, values.mean(axis=0), **more)
    return (
        [mean]
        if len(values) == 1
        else [band(series, x, values.min(axis=0), values.max(axis=0)), mean]
    )


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title, which names the unit."""
    return {"title": {"text": title}, **more}


def rows_layout(rows: int) -> dict[str, Any]:
    """Of a figure with that many lanes, the first on top; the page makes it smaller when a paradigm
    is hidden.
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
    """Lane -> its category, which no other paradigm's lane of that name has: invisible characters
    make the difference.
    """
    return {name: f"{plain(name)}{INVISIBLE * series.index}" for name in names}


def heading(series: Series, names: Mapping[str, str], at: Sequence[float]) -> Trace:
    """The lanes of a paradigm, in order: first one for its name, then its workers'. Drawn before
    what is in them.

    Args:
        series: the paradigm.
        names: lane -> category.
        at: where along the x axis its name stands; once for each part of it that is looked at.
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


def over_seeds(all_series: Sequence[Series]) -> str:
    """How several runs were made one curve, for a caption."""
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
