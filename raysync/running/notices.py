"""What a user is told while a run goes on, in lines of a log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from raysync.core.events import Left
from raysync.core.journal import Ended, Entry, Line
from raysync.record.event_text import gone, is_rare, texts_of

TOGETHER_S = 1.0
"""Within how long workers leave together: Ray tells of all on a lost node within milliseconds."""


def tell(lines: Sequence[Line], notify: Callable[[str], None]) -> None:
    """Tell the user what deserves a line of a log: of workers that leave together, one."""
    told: set[str] = set()
    """Workers of whose leaving a line tells."""
    for line in lines:
        if isinstance(line, Entry):
            if not is_rare(line):
                continue
        elif isinstance(line, Ended):  # its status is reported elsewhere
            for fault in line.faults_without_effect:
                notify(f"Fault never triggered: {fault}.")
            continue
        for event in filter(attrgetter("rare"), texts_of(line)):
            text = event.text
            if event.kind == "left" and isinstance(line, Entry):
                if event.worker in told:
                    continue
                together = _left_with(line, lines)
                told.update(together)
                text = gone(together, line.report)
            notify(f"After {event.at:.1f} s: {text}.")


def _left_with(first: Entry, lines: Sequence[Line]) -> list[str]:
    """Return the workers that left with a first one, as with their node: soon, and as it did."""
    return [
        line.event.worker
        for line in lines
        if isinstance(line, Entry)
        and isinstance(line.event, Left)
        and line.report == first.report
        and 0 <= line.event.at - first.event.at <= TOGETHER_S
    ]
