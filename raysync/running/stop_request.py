"""A request to stop a run after a last checkpoint, set by a signal and polled by the run.

A handler that raised anywhere could tear a report that the engine has yielded and the record has
not written. So the run ends as `stopped` first, and then the signal's exception is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import NoReturn

Leave = Callable[[], NoReturn]  # raises the signal's exception


class RunCut(SystemExit):
    """Ends the process of a run that its sweep does not let go on."""

    def __init__(self, by: str) -> None:
        super().__init__(0)
        self.by = by  # the setting of the sweep, as in `RunEnd.by`


class StopRequest:
    """A request that a signal sets and a run polls."""

    def __init__(self) -> None:
        self._leave: Leave | None = None
        self._requested, self._is_noticed = Event(), False

    def make(self, leave: Leave) -> None:
        """Request the stop; the first of several requests counts."""
        self._leave = self._leave or leave
        self._requested.set()

    def poll(self) -> bool:
        """Return whether a request is new: True only once."""
        is_new = self._requested.is_set() and not self._is_noticed
        self._is_noticed = self._is_noticed or is_new
        return is_new

    def wait(self, limit_s: float) -> bool:
        """Wait for a request; return whether there is one."""
        return self._requested.wait(limit_s)

    def leave(self) -> None:
        """Raise the exception of the request, if there is one."""
        if self._leave is not None:
            self._leave()


_answering: list[StopRequest] = []  # of runs of this process that can stop now: one, or none


@contextmanager
def stop_request(*, is_answered: bool) -> Iterator[StopRequest]:
    """Register a request for the `with` block, and raise its exception at the end.

    If it is not answered, since the run takes no checkpoint, signals raise at once.
    """
    request = StopRequest()
    if not is_answered:
        yield request
        return
    _answering.append(request)
    try:
        yield request
    finally:
        _answering.remove(request)
    request.leave()


def stop_active_run(leave: Leave) -> bool:
    """Request the stop of the run under way; return whether one can stop."""
    for request in _answering:
        request.make(leave)
    return bool(_answering)
