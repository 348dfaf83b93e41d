"""An answer in words and tables, as Markdown and as a page; `cli.table` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from raysync.results.figures import Figure
from raysync.results.markdown import markdown_table, plain
from raysync.results.page import figure_json, render
from raysync.results.tables import Table


@dataclass(frozen=True)
class Answer:
    """The result of a command."""

    command: str
    name: str
    title: str
    question: str
    sentences: Sequence[str]
    tables: Sequence[Table]  # the first one is of `labels`
    legend: str
    labels: Sequence[str]  # the paradigms in the order of their colours
    figures: Sequence[Figure]
    basis: Sequence[str]  # the assumptions and limits of the answer

    def markdown(self) -> str:
        parts = [
            f"# {plain(self.name)}",
            *map(plain, self.sentences),
            *(markdown_table(table.frame()) for table in self.tables),
            self.legend,
            "\n".join(f"- {plain(sentence)}" for sentence in self.basis),
        ]
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        """Return a page that loads nothing from the network."""
        return render(
            "answer.html",
            name=self.name,
            title=self.title,
            answer=self,
            figures=[(figure, Markup(figure_json(figure))) for figure in self.figures],
        )
