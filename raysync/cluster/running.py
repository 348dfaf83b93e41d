"""How a controller works a run of actors off, and reports."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

from raysync.cluster.clock import now_s
from raysync.cluster.logs import log_news
from raysync.cluster.metrics import RunMetrics
from raysync.core.journal import Ended, Line
from raysync.errors import RunFailed
from raysync.engine.faults import Troubles

REPORT_EVERY_S = 0.25
"""How often the driver, and whoever watches the metrics, hear of what happened."""
SIGN_OF_LIFE_S = 1.0
"""How often they hear of this process while nothing happens: the driver takes a longer silence for a failure."""


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

    A report without lines is a sign of life.

    Args:
        run: to work off.
        metrics: to publish; None: none.
    """
    reported_s, error = now_s(), ""
    try:
        run.start()
        while run.goes_on:
            run.wait(until_s=_due_s(run, reported_s))
            if now_s() >= _due_s(run, reported_s):
                yield _reported(run, metrics)
                reported_s = now_s()
    except RunFailed as failure:
        error = str(failure)
    except Exception as bug:  # of the user's paradigm, or ours: what led to it must still reach the journal
        logging.getLogger(__name__).exception("the run broke")
        error = f"controller: {type(bug).__name__}: {' '.join([str(bug), *getattr(bug, '__notes__', [])])}"
    run.lines.append(Ended("failed" if error else run.status, run.last_at, error, run.troubles.without_effect()))
    yield _reported(run, metrics)


def _due_s(run: RayRun, reported_s: float) -> float:
    """When the next report is due, on the clock of this process."""
    return reported_s + (REPORT_EVERY_S if run.lines else SIGN_OF_LIFE_S)


def _reported(run: RayRun, metrics: RunMetrics | None) -> list[Line]:
    lines = run.take_lines()
    log_news(lines)
    if metrics is not None:
        metrics.take(lines)
    return lines
