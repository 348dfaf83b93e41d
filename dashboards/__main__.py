"""`python -m dashboards`: write the JSON of every dashboard; `--print`: as tables of panels and expressions, to be read."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dashboards import fleet, run, sweep
from dashboards.panels import Board, as_json

BOARDS = {"raysync-run": run.board, "raysync-sweep": sweep.board, "raysync-fleet": fleet.board}
"""Uid -> what makes it. The files are named after the uid."""
FOLDER = Path(__file__).parent / "boards"


def made() -> dict[Path, str]:
    """File of each dashboard -> its JSON."""
    return {FOLDER / f"{uid}.json": as_json(make()) for uid, make in BOARDS.items()}


def as_table(board: Board) -> Table:
    """A dashboard as a person reads it: one row an expression."""
    table = Table(title=board.title, title_justify="left", show_lines=True)
    for column in ("panel", "unit", "legend", "expression"):
        table.add_column(column, overflow="fold", max_width=20 if column == "panel" else None)
    for row in board.rows:
        table.add_row(f"[bold]{row.title}[/bold]", "", "", "")
        for panel in row.panels:
            first = True
            for legend, expression in panel.queries.items():
                table.add_row(panel.title if first else "", panel.unit if first else "", legend, expression)
                first = False
    return table


if __name__ == "__main__":
    if "--print" in sys.argv[1:]:
        for make in BOARDS.values():
            Console(width=180, highlight=False).print(as_table(make()))
    else:
        for path, text in made().items():
            path.write_text(text, encoding="utf-8")
