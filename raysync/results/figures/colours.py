"""The colours of figures, by name and theme; a ninth paradigm begins again, dashed.

The eight hues have a contrast of at least 3 to the background, and any two differ in OKLab, also
under simulated deuteranopia, protanopia and tritanopia (Machado et al. 2009).
"""

from __future__ import annotations

import re
from typing import Any, Literal

Theme = Literal["light", "dark"]

# theme -> name -> colour; numbers are paradigms
COLOURS: dict[Theme, dict[str, str]] = {
    "light": {
        "0": "#225fd6",
        "1": "#e65d0e",
        "2": "#069f85",
        "3": "#601a50",
        "4": "#6a4b0b",
        "5": "#a470ec",
        "6": "#b84e40",
        "7": "#0d6977",
        "text": "#1c2430",
        "muted": "#5b6675",
        "grid": "#e3e7ec",
        "edge": "#c3cad3",
        "card": "#ffffff",
        "page": "#f6f7f9",
        "bad": "#b3261e",
    },
    "dark": {
        "0": "#489afc",
        "1": "#fb9343",
        "2": "#8ceed4",
        "3": "#eb4a97",
        "4": "#7f6607",
        "5": "#7557db",
        "6": "#c2535d",
        "7": "#41c5d4",
        "text": "#e6eaf0",
        "muted": "#9aa5b4",
        "grid": "#2c333e",
        "edge": "#465060",
        "card": "#171b22",
        "page": "#101318",
        "bad": "#ff8a80",
    },
}

HUES = 8
DASHES = ("solid", "dash", "dot", "dashdot")

_NAME = re.compile(r"\$(\w+)(?:/(\d+))?")


def painted(data: Any, theme: Theme = "light") -> Any:
    """Replace names of colours in a copy of a figure's data; `$0/25` is `$0`, a quarter opaque."""
    if isinstance(data, dict):
        return {
            key: _paint(value, theme) if _is_name(key, value) else painted(value, theme)
            for key, value in data.items()
        }
    return [painted(part, theme) for part in data] if isinstance(data, list | tuple) else data


def _is_name(key: str, value: Any) -> bool:
    """Recognize a colour by its key: a worker can be called `$0`."""
    return key.endswith("color") and isinstance(value, str) and value.startswith("$")


def _paint(name: str, theme: Theme) -> str:
    match = _NAME.fullmatch(name)
    assert match is not None, f"{name} is no colour"
    colour, percent = COLOURS[theme][match[1]], match[2]
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return colour if percent is None else f"rgba({red},{green},{blue},{int(percent) / 100:g})"
