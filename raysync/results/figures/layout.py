"""The looks that all figures share, as a Plotly layout."""

from __future__ import annotations

from typing import Any

from raysync.results.figures.primitives import Figure

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


def layout_of(figure: Figure) -> dict[str, Any]:
    """Its layout, complete but for its width; legends and titles are the page's."""
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
