"""The page that answers "which paradigm?", and its figures as pictures.

The page is one file that asks nothing of the network (its content security policy forbids it):
Jinja2 fills `template/page.html`, with escaping on; in the browser plotly.js draws the figures, its
bundle of lines, points and bars (`vendor/`). Pictures are drawn by the same plotly.js in a headless
Chrome or Chromium, through kaleido (`raysync[png]`): so there is one description of a figure, where
matplotlib would need a second one of each, which sooner or later shows something else.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from importlib.resources import as_file, files
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from raysync.config import Published
from raysync.errors import ConfigError
from raysync.results import provenance
from raysync.results.collection import Collection
from raysync.results.columns import Measure, ratio_text
from raysync.results.figures import Figure, figures_of, series_of
from raysync.results.figures.colours import COLOURS, HUES, painted
from raysync.results.figures.downsample import POINTS
from raysync.results.figures.layout import layout_of
from raysync.results.ranking import answers, overall
from raysync.results.tables import cell, columns, table

PICTURE_WIDTH = 860
"""Of a picture, in pixels before scaling."""

PICTURE_SCALE = 2.5
"""860 pixels are then 2,150: 300 a inch at 18 cm."""

OPTIONAL = ("converged_accuracy", "dropped")
"""Columns that are left out where no run converged, or no push was dropped."""


def write_html(collection: Collection, path: Path) -> None:
    """Write the page.

    Args:
        collection: what it is about.
        path: the file.
    """
    scenarios = list(collection.scenarios())
    figures = [figures_in(collection, scenario) for scenario in scenarios]
    written = answers(collection)
    tables = {scenario: table(collection, scenario) for scenario in scenarios}
    shown = {
        scenario: shown_columns(collection, scenario, tables[scenario]) for scenario in scenarios
    }
    every = {measure.key: measure for measures in shown.values() for measure in measures}
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(
        _part("page.html")
    )
    path.write_text(
        page.render(
            name=collection.name,
            title=provenance.title(collection),
            overall=overall(collection),
            scenarios=[
                {
                    "title": scenario or "all runs",
                    "answer": written[scenario],
                    "measures": shown[scenario],
                    "rows": _rows(collection, tables[scenario], shown[scenario]),
                    "sections": [
                        (section, list(there))
                        for section, there in groupby(of_scenario, key=lambda one: one.section)
                    ],
                }
                for scenario, of_scenario in zip(scenarios, figures, strict=True)
            ],
            data=[
                {figure.key: Markup(_json(figure)) for figure in of_scenario}
                for of_scenario in figures
            ],
            columns=list(every.values()),
            repeats=_repeats(collection),
            published=collection.published,
            paradigms=collection.paradigms,
            hues=HUES,
            points=POINTS,
            colours=COLOURS,
            commands=provenance.commands(collection),
            configuration=provenance.configuration(collection),
            environment=provenance.environment(collection),
            runs=collection.runs,
            counts=_counts(collection),
            faults=_faults(collection),
            css=Markup(_part("page.css")),
            js=Markup(_part("page.js")),
            plotly=Markup(
                (files("raysync.results") / "vendor" / "plotly-basic.min.js").read_text(
                    encoding="utf-8"
                )
            ),
        ),
        encoding="utf-8",
        errors="backslashreplace",
    )


def figures_in(collection: Collection, scenario: str) -> list[Figure]:
    """The figures of a scenario that have something to show, in the order of the page."""
    return figures_of(
        series_of(collection.paradigms, collection.scenarios()[scenario]),
        collection.success(scenario),
    )


def write_png(collection: Collection, folder: Path) -> list[Path]:
    """Write each figure as a picture with its legend, light, about 18 cm wide at 300 dots an inch.

    Args:
        collection: what the figures are of.
        folder: is made; pictures are `FIGURE.png`, of several scenarios `SCENARIO-FIGURE.png`.

    Returns:
        The pictures.

    Raises:
        ConfigError: kaleido, or a Chrome or Chromium for it, is not installed.
    """
    kaleido = _kaleido()
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[Path, dict[str, Any]] = {}
    for scenario in collection.scenarios():
        plain = re.sub(r"[^A-Za-z0-9=.]+", "-", scenario).strip("-")
        for figure in figures_in(collection, scenario):
            pictures[folder / f"{f'{plain}-' if plain else ''}{figure.key}.png"] = _picture(figure)
    wanted = [
        {"fig": picture, "path": str(path), "opts": {"format": "png", "scale": PICTURE_SCALE}}
        for path, picture in pictures.items()
    ]
    with as_file(files("raysync.results") / "vendor" / "plotly-basic.min.js") as bundle:
        page = kaleido.PageGenerator(plotly=str(bundle), mathjax=False)
        try:
            kaleido.write_fig_from_object_sync(wanted, kopts={"page_generator": page})
        except kaleido.errors.ChromeNotFoundError as error:
            raise ConfigError(
                "pictures need Chrome or Chromium, and none was found; install one: your system's"
                " chromium package, or `kaleido_get_chrome`"
            ) from error
    return list(pictures)


def _kaleido() -> Any:
    try:
        import kaleido
        import kaleido.errors
    except ImportError as error:
        raise ConfigError(
            "pictures need kaleido; install it: pip install 'raysync[png]'"
        ) from error
    return kaleido


def _picture(figure: Figure) -> dict[str, Any]:
    """For a paper: with its legend, on white."""
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"}
    margin = {"l": 60, "r": 20, "t": 70, "b": 50}
    layout = layout_of(figure) | {
        "width": PICTURE_WIDTH,
        "height": figure.height + 60,
        "showlegend": True,
        "legend": legend,
        "margin": margin,
    }
    for view in figure.views[:1]:
        layout[view.axis] = layout[view.axis] | {"range": [view.low, view.high]}
    complete: dict[str, Any] = painted({"data": figure.traces, "layout": layout}, "light")
    return complete


def _part(name: str) -> str:
    return (files("raysync.results") / "template" / name).read_text(encoding="utf-8")


def _json(figure: Figure) -> str:
    """Safe inside a script element: no `<` is left."""
    data = {"traces": figure.traces, "layout": layout_of(figure)}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _rows(
    collection: Collection, frame: pd.DataFrame, measures: Sequence[Measure]
) -> list[dict[str, Any]]:
    """The table of paradigms as the page shows it."""
    published = collection.published
    return [
        {
            "paradigm": paradigm,
            "index": collection.paradigms.index(str(paradigm)),
            "statuses": row["statuses"],
            "label": _breakable(str(paradigm)),
            "cells": [
                {
                    "key": measure.key,
                    "parts": _parts(cell(row, measure)),
                    "notes": _notes(row, measure, published),
                }
                for measure in measures
            ],
        }
        for paradigm, row in frame.iterrows()
    ]


def shown_columns(collection: Collection, scenario: str, frame: pd.DataFrame) -> list[Measure]:
    """The columns of a scenario's table on the page: not those that say nothing of any paradigm, if
    they may be missing.
    """
    measures = columns(collection, scenario)
    silent = {
        measure.key
        for measure in measures
        if measure.key in OPTIONAL
        and not frame[measure.key].fillna(0.0).any()
        and f"{measure.key}_published" not in frame
    }
    return [measure for measure in measures if measure.key not in silent]


def _breakable(label: str) -> Markup:
    """A long name may be broken before its parameters."""
    return escape(label).replace("(", Markup("<wbr>("))


def _parts(text: str) -> list[str]:
    """Where a cell may be broken: `3.42`, `± 0.31`, `(2 of 3)`."""
    return re.split(r" (?=[±(])", text)


def _notes(row: pd.Series[Any], measure: Measure, published: Published | None) -> list[str]:
    """What stands below a measured value: its ratio, and the published value with its ratio."""
    rows = published.rows.get(str(row.name), {}) if published is not None else {}
    if measure.key not in rows:
        return []
    value = rows[measure.key]
    ratio, their_ratio = (row.get(f"{measure.key}_{name}") for name in ("ratio", "published_ratio"))
    theirs = "not reached" if value is None else measure.show(value)
    theirs += (
        f" ({ratio_text(their_ratio)}×)"
        if their_ratio is not None and pd.notna(their_ratio)
        else ""
    )
    ours = [f"{ratio_text(ratio)}×"] if ratio is not None and pd.notna(ratio) else []
    return [*ours, f"published {theirs}"]


def _repeats(collection: Collection) -> str:
    """What the numbers are means of."""
    seeds = sorted({run.seed for run in collection.runs})
    if len(seeds) == 1:
        return f"Seed {seeds[0]}: one run a paradigm, so no interval."
    listed = ", ".join(map(str, seeds)) if len(seeds) <= 12 else f"{seeds[0]} to {seeds[-1]}"
    return (
        f"Mean over seeds {listed}; ±: half of the 95% interval of the mean (Student's t). “2 of"
        " 3”: two of three repeats have a value; the mean is of those."
    )


def _counts(collection: Collection) -> str:
    statuses = Counter(run.status for run in collection.runs)
    statuses["failed"] += len(collection.failed)
    parts = ", ".join(f"{count} {status}" for status, count in statuses.most_common() if count)
    older = (
        f"; {collection.superseded} older records of the same are left out"
        if collection.superseded
        else ""
    )
    return f"{len(collection.runs) + len(collection.failed)} runs: {parts}{older}"


def _faults(collection: Collection) -> list[dict[str, str]]:
    """Runs that did not finish, or of which something is missing, and why."""
    runs = [
        run
        for groups in collection.scenarios().values()
        for repeats in groups.values()
        for run in repeats
    ]
    return [
        {
            "status": run.status,
            "label": run.label,
            "error": run.unfinished or str(run.record.summary.get("error") or ""),
        }
        for run in runs
        if run.status != "finished" or run.unfinished
    ] + [{"status": "failed", "label": one.label, "error": one.error} for one in collection.failed]
