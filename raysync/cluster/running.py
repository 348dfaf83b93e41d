"""How a controller works a run of actors off, and reports."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import inf
from typing import Protocol

from raysync.cluster.clock import now_s
from raysync.cluster.metrics import REFRESH_S, RunMetrics
from raysync.core.journal import Ended, Line
from raysync.errors import RunFailed
from raysync.troubles import Troubles

REPORT_EVERY_S = 0.25
"""How often the driver, and whoever watches the metrics, hear of what happened."""


class RayRun(Protocol):
    """A run of actors."""

    lines: list[Line]
    status: str
    """How the training ended; empty while it goes on. Evaluations may still be pending then."""
    last_at: float
    """Seconds since the run began: the latest publication."""
    troubles: Troubles

    @property
    def goes_on(self) -> bool:
        """Whether something is under way, or will be at its time."""

    def start(self) -> None:
        """Let every worker join."""

    def wait(self, until_s: float) -> None:
        """Wait for the next thing to happen, at most until that time of the clock, and act on it."""

    def take_lines(self) -> list[Line]:
        """What happened since the last call."""


def to_its_end(run: RayRun, metrics: RunMetrics | None) -> Iterator[list[Line]]:
    """Work a run off, and report as it happens; the last line is an `Ended`, also of a run that broke.

    Args:
        run: to work off.
        metrics: to publish; None: none.
    """
    reported_s, error = now_s(), ""
    try:
        run.start()
        while run.goes_on:
            idle_s = inf if metrics is None else REFRESH_S
            run.wait(until_s=reported_s + (REPORT_EVERY_S if run.lines else idle_s))
            if now_s() >= reported_s + (REPORT_EVERY_S if run.lines else idle_s):
                yield from _reported(run, metrics)
                reported_s = now_s()
    except RunFailed as failure:
        error = str(failure)
    except Exception as bug:  # of the user's paradigm, or ours: what led to it must still reach the journal
        logging.getLogger(__name__).exception("the run broke")
        error = f"controller: {type(bug).__name__}: {' '.join([str(bug), *getattr(bug, '__notes__', [])])}"
    run.lines.append(Ended("failed" if error else run.status, run.last_at, error, run.troubles.without_effect()))
    yield from _reported(run, metrics)


def _reported(run: RayRun, metrics: RunMetrics | None) -> Iterator[list[Line]]:
    lines = run.take_lines()
    if metrics is not None:
        metrics.take(lines)
    if lines:
        yield lines
