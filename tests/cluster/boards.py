"""The dashboards as users get them: their JSON, and what is asked for in it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

BOARDS = {
    file.name: json.loads(file.read_text(encoding="utf-8"))
    for file in (files("raysync") / "dashboards").iterdir()
}


PANELS = [
    (name, panel)
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]


@dataclass(frozen=True)
class Asked:
    """One expression of a panel."""

    board: str
    panel: dict[str, Any]
    legend: str
    expression: str

    @property
    def says_why_empty(self) -> bool:
        """What it shows in place of Grafana's "No data"."""
        return bool(self.panel["fieldConfig"]["defaults"].get("noValue"))

    def __str__(self) -> str:
        return f"{self.board}: {self.panel['title']} ({self.legend}): {self.expression}"


def asked() -> Iterator[Asked]:
    """Every expression of every dashboard."""
    for name, board in BOARDS.items():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                yield Asked(name, panel, target["legendFormat"], target["expr"])


def choices() -> Iterator[tuple[str, str, str]]:
    """Every choice above a dashboard: its name, the series and the label that it takes its values
    from.
    """
    for board in BOARDS.values():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                series, label = re.fullmatch(
                    r"label_values\((.+), (\w+)\)", variable["query"]["query"]
                ).groups()
                yield variable["name"], series, label
