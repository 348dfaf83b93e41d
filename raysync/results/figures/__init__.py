"""The figures of a report: one file a subject, each a function from the paradigms' runs to what
there is to show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from raysync.results.collection import Run, Success
from raysync.results.figures import lagtuner, learning_curves, staleness, time_breakdown, timeline
from raysync.results.figures.primitives import Figure, Series

__all__ = ["Figure", "Series", "figures_of", "series_of"]


def series_of(paradigms: Sequence[str], runs: Mapping[str, Sequence[Run]]) -> list[Series]:
    """The paradigms of a scenario that left records.

    Args:
        paradigms: all of the collection, in order: a paradigm has one colour in all scenarios.
        runs: paradigm -> its repeats.
    """
    return [
        Series(label, tuple(there), paradigms.index(label))
        for label, there in runs.items()
        if there
    ]


def figures_of(all_series: Sequence[Series], success: Success) -> list[Figure]:
    """Every figure that has something to show, in the order of the page."""
    made = [
        *learning_curves.figures(all_series, success),
        *time_breakdown.figures(all_series),
        *timeline.figures(all_series),
        *staleness.figures(all_series),
        *lagtuner.figures(all_series),
    ]
    return widened([figure for figure in made if figure.traces])


def widened(figures: Sequence[Figure]) -> list[Figure]:
    """The same, where two narrow ones of a section share a row; one that is left alone becomes
    wide.
    """
    made: list[Figure] = []
    for _, run in groupby(figures, key=lambda one: (one.section, one.wide)):
        row = list(run)
        alone = len(row) % 2 == 1
        made += [*row[:-1], replace(row[-1], wide=row[-1].wide or alone)]
    return made
