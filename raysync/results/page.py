"""The page that answers "which paradigm?", and its figures as pictures.

It is one file that loads nothing from the network. plotly.js draws the figures in the browser and,
through kaleido in a headless Chrome, the pictures, so each figure has one description.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib.resources import as_file, files
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from raysync.errors import ConfigError
from raysync.results import provenance
from raysync.results.collection import Collection
from raysync.results.figures import Figure, figures_of, series_of
from raysync.results.figures.colours import COLOURS, HUES, painted
from raysync.results.figures.downsample import POINTS
from raysync.results.figures.primitives import layout_of
from raysync.results.ranking import Ranking, rank_all
from raysync.results.sentences import (
    answer,
    bottlenecks,
    cautions,
    legend,
    losses,
    overall,
    resumptions,
    search_text,
    unfinished,
)
from raysync.results.tables import tables_of

PLOTLY = "vendor/plotly-basic.min.js"

PICTURE_WIDTH = 860  # pixels before scaling
LEGEND_PX = 60  # the height of a picture's legend
PICTURE_SCALE = 2.5  # 860 pixels become 2,150: 300 dpi at a width of 18 cm


def write_html(collection: Collection, path: Path) -> None:
    rankings = rank_all(collection)
    scenarios = [_scenario(collection, ranking) for ranking in rankings]
    tables = [table for scenario in scenarios for table in scenario["tables"]]
    page = render(
        "page.html",
        collection=collection,
        name=collection.name,
        title=provenance.title(collection),
        overall=overall(rankings),
        search=search_text(collection.search),
        unfinished=unfinished(collection),
        scenarios=scenarios,
        columns={column.heading: column for table in tables for column in table.columns}.values(),
        legend=legend(collection),
        points=POINTS,
        commands=provenance.commands(collection),
        configuration=provenance.configuration(collection),
        environment=provenance.environment(collection),
        counts=_count_text(collection),
        failures=_failures(collection),
        resumptions=resumptions(collection),
        cautions=[*losses(collection), *cautions(collection)],
    )
    path.write_text(page, encoding="utf-8", errors="backslashreplace")


def _scenario(collection: Collection, ranking: Ranking) -> dict[str, Any]:
    """Return the parts of a scenario for the page, with the figures by section."""
    figures = figures_in(collection, ranking.scenario)
    return {
        "title": ranking.scenario or "all runs",
        "answer": answer(ranking),
        "bottlenecks": bottlenecks(collection, ranking.scenario),
        "tables": tables_of(collection, ranking),
        "sections": [
            (section, [(figure, Markup(figure_json(figure))) for figure in of_section])
            for section, of_section in groupby(figures, key=lambda figure: figure.section)
        ],
    }


def figures_in(collection: Collection, scenario: str) -> list[Figure]:
    """Return the figures of a scenario that are not empty, in the order of the page."""
    return figures_of(
        series_of(collection.paradigms, collection.scenarios[scenario]),
        collection.criteria(scenario),
        collection.search,
    )


def figure_json(figure: Figure) -> str:
    """Return a figure as JSON that is safe in a script element: without `<`."""
    data = {"traces": figure.traces, "layout": layout_of(figure)}
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _count_text(collection: Collection) -> str:
    """Count the runs by status."""
    statuses = Counter(trial.end.how for trial in collection.trials)
    parts = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    text = f"{statuses.total()} runs: {parts}"
    if collection.superseded:
        text += f"; {collection.superseded} older records of the same are left out"
    return text


def _failures(collection: Collection) -> list[dict[str, str]]:
    """Return the runs that did not finish or are not recorded to their end, with the reason."""
    return [
        {
            "status": run.end.words,
            "label": run.label,
            "error": run.incomplete_reason or str(run.record.summary.get("error") or ""),
        }
        for groups in collection.scenarios.values()
        for repeats in groups.values()
        for run in repeats
        if run.end.kind not in ("done", "reached") or run.incomplete_reason
    ] + [
        {"status": trial.end.how, "label": trial.label, "error": trial.error}
        for trial in collection.failed
    ]


def render(template: str, **contents: Any) -> str:
    """Fill a file of `template` in the shared frame with style, script and plotly.js.

    The `contents` need `name` and `title` for the frame.
    """
    pages = Environment(
        loader=PackageLoader("raysync.results", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    pages.filters["parts"] = _cell_parts
    pages.filters["breakable"] = _breakable
    return pages.get_template(template).render(
        hues=HUES,
        colours=COLOURS,
        css=Markup(_resource("template/page.css")),
        js=Markup(_resource("template/page.js")),
        plotly=Markup(_resource(PLOTLY)),
        **contents,
    )


def _resource(name: str) -> str:
    return (files("raysync.results") / name).read_text(encoding="utf-8")


def _breakable(label: str) -> Markup:
    """Let a browser break a name before its parameters."""
    return escape(label).replace("(", Markup("<wbr>("))


def _cell_parts(text: str) -> list[str]:
    """Split a cell at its possible line breaks: `3.42`, `± 0.31`, `(2 of 3)`."""
    return re.split(r" (?=[±(])", text)


def write_png(collection: Collection, folder: Path) -> list[Path]:
    """Write each figure as a light picture, about 18 cm wide at 300 dpi, and return the paths.

    Names are `FIGURE.png`, or `SCENARIO-FIGURE.png` if there are several scenarios. Raises
    `ConfigError` if kaleido, or Chrome or Chromium, is not installed.
    """
    kaleido = _kaleido()
    folder.mkdir(parents=True, exist_ok=True)
    pictures: dict[Path, dict[str, Any]] = {}
    for scenario in collection.scenarios:
        name = re.sub(r"[^A-Za-z0-9=.]+", "-", scenario).strip("-")
        prefix = f"{name}-" if name else ""
        for figure in figures_in(collection, scenario):
            pictures[folder / f"{prefix}{figure.key}.png"] = _picture(figure)
    jobs = [
        {"fig": picture, "path": str(path), "opts": {"format": "png", "scale": PICTURE_SCALE}}
        for path, picture in pictures.items()
    ]
    with as_file(files("raysync.results") / PLOTLY) as bundle:
        page = kaleido.PageGenerator(plotly=str(bundle), mathjax=False)
        try:
            kaleido.write_fig_from_object_sync(jobs, kopts={"page_generator": page})
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
    """Return a figure for a paper: with its legend, on white."""
    layout = layout_of(figure) | {
        "width": PICTURE_WIDTH,
        "height": figure.height + LEGEND_PX,
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        "margin": {"l": 60, "r": 20, "t": 70, "b": 50},
    }
    for view in figure.views[:1]:
        layout[view.axis] = layout[view.axis] | {"range": [view.low, view.high]}
    picture: dict[str, Any] = painted({"data": figure.traces, "layout": layout}, "light")
    return picture
