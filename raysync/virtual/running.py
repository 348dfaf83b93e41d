"""How a run on a virtual clock is worked off, and reported."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Protocol

from raysync.core.journal import Ended, Line
from raysync.errors import RunFailed
from raysync.troubles import Troubles

REPORT_EVERY = 20
"""Lines. Few, so that they are gone before the garbage collector moves them to its older generations: with 1,000 it took a
third of the time of a run without gradients."""


class VirtualRun(Protocol):
    """A run on a virtual clock."""

    lines: list[Line]
    status: str
    """How the training ended; empty while it goes on."""
    troubles: Troubles

    @property
    def last_at(self) -> float:
        """Seconds since the run began: the latest publication."""

    def start(self) -> None:
        """Let every worker join."""

    def advance(self) -> None:
        """What happens next, to the end of the run or until there is something to report."""

    def take_lines(self) -> list[Line]:
        """What happened since the last call."""


def to_its_end(run: VirtualRun) -> Iterator[list[Line]]:
    """Work a run off, and yield what happens, in order; the last line is an `Ended`, also of a run that broke."""
    error = ""
    try:
        run.start()
        while not run.status:
            run.advance()
            yield run.take_lines()
    except RunFailed as failure:
        error = str(failure)
    except Exception as bug:  # of the user's paradigm, or ours: what led to it must still reach the journal
        logging.getLogger(__name__).exception("the run broke")
        error = f"{type(bug).__name__}: {' '.join([str(bug), *getattr(bug, '__notes__', [])])}"
    run.lines.append(Ended("failed" if error else run.status, run.last_at, error, run.troubles.without_effect()))
    yield run.take_lines()
