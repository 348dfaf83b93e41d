"""The figures of a report: one file a subject, each with a function `figures` that makes them from
the paradigms' runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from raysync.results.collection import CollectedRun, Success
from raysync.results.figures import (
    decisions_and_events,
    learning_curves,
    staleness,
    time_breakdown,
    timeline,
)
from raysync.results.figures.primitives import Figure, Series

__all__ = ["Figure", "Series", "figures_of", "series_of"]


def series_of(paradigms: Sequence[str], runs: Mapping[str, Sequence[CollectedRun]]) -> list[Series]:
    """Return the paradigms of a scenario that left records.

    Args:
        paradigms: all of the collection, in order: a paradigm has one colour in all scenarios.
        runs: paradigm -> its repeats.
    """
    return [
        Series(label, tuple(repeats), paradigms.index(label))
        for label, repeats in runs.items()
        if repeats
    ]


def figures_of(all_series: Sequence[Series], success: Success) -> list[Figure]:
    """Return every figure that has something to show, in the order of the page."""
    everything = [
        *learning_curves.figures(all_series, success),
        *time_breakdown.figures(all_series),
        *timeline.figures(all_series),
        *staleness.figures(all_series),
        *decisions_and_events.figures(all_series),
    ]
    return widened([figure for figure in everything if figure.traces])


def widened(figures: Sequence[Figure]) -> list[Figure]:
    """Return the same figures; two narrow ones of a section share a row, and one that is left alone
    becomes wide.
    """
    laid_out: list[Figure] = []
    for _, neighbours in groupby(figures, key=lambda figure: (figure.section, figure.wide)):
        *others, last = neighbours
        alone = len(others) % 2 == 0
        laid_out += [*others, replace(last, wide=last.wide or alone)]
    return laid_out
