"""The table of README.md and the numbers in its prose, from results/agree.md."""

from __future__ import annotations

from labtables import Results, numbers, range_text, rows_of, tabulate

PARADIGM, WORKERS, RATIO, POINTS, STALENESS = 0, 1, 4, 7, 10
"""Columns of the table."""
SETTINGS = {
    "4": "4 workers",
    "4, a link": "4 workers, a slow link",
    "8": "8 workers",
    "8, a link": "8 workers, slow links",
}
CLAIMED = {"4": 0.1, "4, a link": 0.05, "8": 0.1, "8, a link": 0.05}
"""Workers -> by how much the clocks may differ."""


def tables(results: Results) -> dict[str, str]:
    """Return the tables by the names of their marks."""
    return {"verdicts": tabulate([_verdict(results, name) for name in SETTINGS])}


def facts(results: Results) -> dict[str, str]:
    """Return the facts by the names of their marks."""
    return {
        **{name: range_text(_means(results, name, RATIO)) for name in ("4", "4, a link")},
        "four over seeds": range_text(
            _over_seeds(results, "4") + _over_seeds(results, "4, a link")
        ),
        "eight over seeds": range_text(_over_seeds(results, "8, a link")),
    }


def _rows(results: Results, workers: str) -> list[list[str]]:
    [table] = rows_of(results.measured()["agree"])
    return [row for row in table if row[WORKERS] == workers]


def _means(results: Results, workers: str, column: int) -> list[float]:
    """Return the means of the paradigms; none where nothing can be stale."""
    found = [numbers(row[column]) for row in _rows(results, workers)]
    return [mean for mean, *_ in filter(None, found)]


def _over_seeds(results: Results, workers: str) -> list[float]:
    return [bound for row in _rows(results, workers) for bound in numbers(row[RATIO])[1:]]


def _verdict(results: Results, workers: str) -> dict[str, str]:
    allowed, seeds = CLAIMED[workers], _over_seeds(results, workers)
    holds = all(abs(bound - 1) <= allowed for bound in seeds)
    return {
        "setting": SETTINGS[workers],
        "claimed": f"{allowed:.0%}",
        "throughput, virtual / Ray": range_text(_means(results, workers, RATIO)),
        "over seeds": range_text(seeds),
        "points of wait, most": f"{max(_means(results, workers, POINTS)):+.1f}",
        "staleness, virtual / Ray": range_text(_means(results, workers, STALENESS)),
        "verdict": "holds" if holds else "undecided",  # other work slowed Ray down there
    }
