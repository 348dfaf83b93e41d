"""The figure of a search: its trials in their order, by paradigm, and the best value so far."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from raysync.results.figures.learning_curves import measure_axis
from raysync.results.figures.primitives import (
    Figure,
    Series,
    Trace,
    axis,
    caption,
    numbers,
    plain,
    scatter,
)
from raysync.results.search_course import SearchCourse, SearchedTrial

SECTION = "The search"


def figure(all_series: Sequence[Series], course: SearchCourse) -> Figure | None:
    """Return the course of the search, if any trial has a value."""
    complete = [trial for trial in course.trials if trial.is_complete]
    if not complete:
        return None
    measure = measure_axis(course.metric)

    def values(trials: Sequence[SearchedTrial]) -> list[float]:
        return [measure.scale * (trial.value or 0.0) for trial in trials]

    choose = max if course.metric.rises else min
    best: Trace = {
        "type": "scatter",
        "mode": "lines",
        "name": "best so far",
        "line": {"color": "$muted", "width": 1.5, "dash": "dot", "shape": "hv"},
        "x": [trial.number + 1 for trial in complete],
        "y": numbers(list(accumulate(values(complete), choose))),
    }
    of_best = {
        paradigm: trial.record and trial.record.path
        for paradigm, trial in course.best_of_paradigms.items()
    }
    traces = [best]
    for series in all_series:
        paths = {run.record.path for run in series.runs}
        chosen = [trial for trial in complete if of_best.get(trial.paradigm) in paths]
        traces.append(
            scatter(
                series,
                "markers",
                marker={"color": series.color, "size": 8},
                x=[trial.number + 1 for trial in chosen],
                y=numbers(values(chosen)),
                text=[plain(trial.words) for trial in chosen],
                hovertemplate=f"%{{y}}{measure.unit} in trial %{{x}}<br>%{{text}}",
            )
        )
    return Figure(
        key="search",
        section=SECTION,
        title="The course of the search",
        caption=caption(
            f"The {measure.title} of each trial that did its work, in the order of the search.",
            "Line: the best so far.",
        ),
        traces=traces,
        layout={
            "xaxis": axis("trial", rangemode="tozero"),
            "yaxis": axis(measure.title, **measure.axis),
        },
        wide=True,
    )
