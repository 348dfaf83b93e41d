"""The goals of the platform, beside what the scripts have measured."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from labtables import Results, numbers, rows_of, tabulate

Cells = Callable[[Results], list[str]]
"""Finds what was measured: one cell, or several of which the worst counts."""


def _cell(script: str, table: int, rows: str, column: int, results: Results) -> list[str]:
    """Return a column of those rows whose text begins with a pattern."""
    tables = rows_of(results.measured()[script])
    found = [row[column] for row in tables[table] if re.match(rows, " | ".join(row))]
    assert found, f"{script}: no row {rows}"
    return found


def _said(script: str, pattern: str, results: Results) -> list[str]:
    """Return what a script wrote outside of tables."""
    match = re.search(pattern, results.measured()[script])
    assert match is not None, f"{script}: nothing like {pattern}"
    return [match[1]]


def _both(one: Cells, other: Cells) -> Cells:
    return lambda results: [*one(results), *other(results)]


@dataclass(frozen=True)
class Goal:
    """A goal that was set, and where it was measured."""

    of: str
    limit: float
    cells: Cells
    at_least: bool = True
    short: bool = False
    """Whether it is on the first page."""
    unit: str = ""

    def worst(self, results: Results) -> str:
        """Return the cell with the worst median."""
        return (min if self.at_least else max)(
            self.cells(results), key=lambda cell: numbers(cell)[0]
        )

    def verdict(self, results: Results) -> str:
        """Judge the worst cell: *open* if its median meets the goal and its interval does not."""
        median, *interval = numbers(self.worst(results))
        sign = 1 if self.at_least else -1
        if sign * (median - self.limit) < 0:
            return "missed"
        return "met" if all(sign * (end - self.limit) > 0 for end in interval) else "open"

    def row(self, results: Results) -> dict[str, str]:
        """Return the row of the table."""
        limit = f"{self.limit:,g}{self.unit}"
        return {
            "what": self.of,
            "goal": f"{'at least' if self.at_least else 'at most'} {limit}",
            "measured": f"{self.worst(results)}{self.unit}",
            "": self.verdict(results),
        }


throughput = partial(partial, _cell, "throughput")
ddp = partial(partial, _cell, "ddp", 0)
virtual = partial(partial, _cell, "virtual")
GRADIENTS = _both(virtual(3, "304", 3), virtual(3, "2,400", 3))
GOALS: Sequence[Goal] = (
    Goal(
        "gradients/s, BSP, of loops that exchange nothing",
        0.6,
        throughput(0, "raysync, bsp \\|", 3),
        short=True,
    ),
    Goal("the same, as it was raised", 0.8, throughput(0, "raysync, bsp \\|", 3)),
    Goal(
        "gradients/s, ASP, of loops that exchange nothing",
        0.7,
        throughput(0, "raysync, asp \\|", 3),
        short=True,
    ),
    Goal("the same, as it was raised", 0.8, throughput(0, "raysync, asp \\|", 3)),
    Goal(
        "gradients/s, BSP, object references, of such loops",
        0.4,
        throughput(0, "raysync, bsp, object", 3),
        short=True,
    ),
    Goal(
        "gradients/s, ASP, object references, of the same",
        0.4,
        throughput(0, "raysync, asp, object", 3),
    ),
    Goal(
        "gradients/s, BSP, object references, of Ray's example",
        1,
        throughput(1, "raysync, bsp, object references / Ray's", 1),
    ),
    Goal(
        "gradients/s, ASP, object references, of Ray's example",
        1,
        throughput(1, "raysync, asp, object references / Ray's", 1),
    ),
    Goal(
        "gradients/s, ASP, of Hogwild",
        0.8,
        partial(_cell, "hogwild", 0, "raysync, asp \\|", 3),
        short=True,
    ),
    Goal(
        "BSP round, 25 M parameters, object references, of DDP's",
        1.3,
        ddp("25 M", 5),
        at_least=False,
    ),
    Goal("BSP round, 0.1 M, of DDP's", 0.9, ddp("0.1 M", 4), at_least=False, short=True),
    Goal("BSP round, 2.5 M, of DDP's", 0.8, ddp("2.5 M", 4), at_least=False),
    Goal("BSP round, 25 M, of DDP's", 0.67, ddp("25 M", 4), at_least=False, short=True),
    Goal(
        "server's SGD update by one gradient, of torch's step",
        1,
        _both(
            partial(_cell, "server", 0, "SGD \\| 1 ", 4),
            partial(_cell, "server", 0, "SGD \\| 1 ", 7),
        ),
        at_least=False,
    ),
    Goal(
        "every other update, of its formulas in torch",
        0.6,
        _both(
            partial(_cell, "server", 0, "(?!SGD \\| 1 )", 4),
            partial(_cell, "server", 0, "(?!SGD \\| 1 )", 7),
        ),
        at_least=False,
    ),
    Goal(
        "throughput with metrics, of that without",
        0.98,
        partial(_cell, "metrics", 0, "pushes/s", 3),
        short=True,
    ),
    Goal(
        "throughput with a checkpoint a minute, 25 M, of that without",
        0.98,
        partial(_cell, "checkpoints", 0, "each", 3),
        short=True,
    ),
    Goal(
        "pushes/s decided with 8 workers, of those with 10,000",
        2,
        partial(_cell, "machine", 0, "", 3),
        at_least=False,
    ),
    Goal("pushes/s that SSP decides, 8 workers", 80_000, partial(_cell, "machine", 0, "ssp", 1)),
    Goal("virtual pushes/s of SSP, 8 workers", 40_000, virtual(0, "ssp", 1), short=True),
    Goal("the same, as it was raised", 60_000, virtual(0, "ssp", 1)),
    Goal("virtual pushes/s of SSP, 10,000 workers", 40_000, virtual(0, "ssp", 4)),
    Goal("virtual pushes/s of SSP, 10,000 workers, of those with 8", 0.5, virtual(0, "ssp", 5)),
    Goal("virtual pushes/s, of SimPy with links and server", 1, virtual(2, "with links", 4)),
    Goal(
        "seconds with a record, 8 workers, of those without",
        1.4,
        virtual(1, "8 ", 3),
        at_least=False,
    ),
    Goal(
        "a virtual run with gradients, of a plain loop", 1.15, GRADIENTS, at_least=False, short=True
    ),
    Goal("the same, as it was raised", 1.05, GRADIENTS, at_least=False),
    Goal(
        "a million pushes with their record",
        1024,
        partial(_said, "virtual", r"peak (\d+) MiB"),
        at_least=False,
        unit=" MiB",
    ),
    Goal(
        "`raysync whatif`, 64 ranks, 2,000 steps",
        60,
        partial(_said, "whatif", r"([\d.]+) seconds"),
        at_least=False,
        unit=" s",
    ),
    Goal(
        "what Ray Tune adds to a trial",
        1,
        partial(_cell, "sweep", 0, "Tune adds", 1),
        at_least=False,
        short=True,
        unit=" s",
    ),
)


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    return {
        "costs": tabulate(goal.row(results) for goal in GOALS if goal.short),
        "goals": tabulate(goal.row(results) for goal in GOALS),
    }


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    count = Counter(goal.verdict(results) for goal in GOALS)
    [bsp], [ddp_25], [gpu], [local] = (
        throughput(0, "raysync, bsp \\|", 3)(results),
        ddp("25 M", 4)(results),
        _cell("gpu", 6, "raysync, bsp", 3, results),
        _cell("gpu", 6, "raysync, diloco", 3, results),
    )
    return {
        "bsp": bsp,
        "ddp": ddp_25,
        "gpu": gpu,
        "local": local,
        "goals": str(len(GOALS)),
        **{verdict: str(count[verdict]) for verdict in ("met", "missed", "open")},
    }
