"""The figures of a report: one file a subject, each a function from paradigms' runs to the figures that have something to show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raysync.results.collection import Run, Success
from raysync.results.figures import controller, learning, spending, staleness, timeline
from raysync.results.figures.parts import Figure, Series

__all__ = ["Figure", "Series", "figures_of", "series_of"]


def series_of(paradigms: Sequence[str], runs: Mapping[str, Sequence[Run]]) -> list[Series]:
    """The paradigms of a scenario that left records.

    Args:
        paradigms: all of the collection, in order: a paradigm has one colour in all scenarios.
        runs: paradigm -> its repeats.
    """
    return [Series(label, tuple(there), paradigms.index(label)) for label, there in runs.items() if there]


def figures_of(all_series: Sequence[Series], success: Success) -> list[Figure]:
    """Every figure that has something to show, in the order of the page."""
    made = [*learning.figures(all_series, success), *spending.figures(all_series), *timeline.figures(all_series),
            *staleness.figures(all_series), *controller.figures(all_series)]
    return [figure for figure in made if figure.traces]
