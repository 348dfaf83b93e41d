"""`python -m dashboards` writes the JSON of every dashboard; `--print` shows tables of panels and
expressions instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dashboards import fleet, run, sweep
from dashboards.panels import Board, as_json

BOARDS = (run.board(), sweep.board(), fleet.board())
FOLDER = Path(__file__).parent / "boards"


def generated() -> dict[Path, str]:
    """Return the file of each dashboard, named after its uid -> its JSON."""
    return {FOLDER / f"{board.uid}.json": as_json(board) for board in BOARDS}


def as_table(board: Board) -> Table:
    """Return a dashboard as a table for a reader: a row for each expression."""
    table = Table(title=board.title, title_justify="left", show_lines=True)
    for column in ("panel", "unit", "legend", "expression"):
        table.add_column(column, overflow="fold", max_width=20 if column == "panel" else None)
    for row in board.rows:
        table.add_row(f"[bold]{row.title}[/bold]", "", "", "")
        for panel in row.panels:
            first = True
            for legend, expression in panel.queries.items():
                table.add_row(
                    panel.title if first else "", panel.unit if first else "", legend, expression
                )
                first = False
    return table


def main(
    show: Annotated[
        bool, typer.Option("--print", help="Show every panel, and write nothing.")
    ] = False,
) -> None:
    """Write the JSON of every dashboard."""
    if show:
        for board in BOARDS:
            Console(width=180, highlight=False).print(as_table(board))
    else:
        for path, text in generated().items():
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
