"""The figures of a report: each module makes a section, from the paradigms' runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from raysync.results.collection import CollectedRun, Criteria
from raysync.results.figures import (
    decisions_and_events,
    lead_and_staleness,
    learning_curves,
    search_history,
    time_breakdown,
    timeline,
)
from raysync.results.figures.primitives import Figure, Series
from raysync.results.search_course import SearchCourse

__all__ = ["Figure", "Series", "figures_of", "series_of"]


def series_of(paradigms: Sequence[str], runs: Mapping[str, Sequence[CollectedRun]]) -> list[Series]:
    """Return the paradigms of a scenario that left records.

    Args:
        paradigms: all in the collection, which give each its colour.
        runs: paradigm -> its repeats.
    """
    return [
        Series(label, tuple(repeats), paradigms.index(label))
        for label, repeats in runs.items()
        if repeats
    ]


def figures_of(
    all_series: Sequence[Series], criteria: Criteria, course: SearchCourse | None = None
) -> list[Figure]:
    """Return the figures that are not empty, in the order of the page."""
    everything = [
        None if course is None else search_history.figure(all_series, course),
        *learning_curves.figures(all_series, criteria),
        *time_breakdown.figures(all_series),
        timeline.figure(all_series),
        *lead_and_staleness.figures(all_series),
        *decisions_and_events.figures(all_series),
    ]
    return widened([figure for figure in everything if figure is not None and figure.traces])


def widened(figures: Sequence[Figure]) -> list[Figure]:
    """Arrange figures: two narrow ones of a section share a row, and a single one is widened."""
    laid_out: list[Figure] = []
    for _, neighbours in groupby(figures, key=lambda figure: (figure.section, figure.wide)):
        *others, last = neighbours
        alone = len(others) % 2 == 0
        laid_out += [*others, replace(last, wide=last.wide or alone)]
    return laid_out
