"""A request to end in good order, which a signal makes and a run answers.

A signal that raised wherever the process happens to be could tear a report apart that the engine
has given and the record has not got. So while a run takes checkpoints the first signal only asks:
the run takes a last checkpoint, and ends as `stopped`; then what the signal wanted to raise is
raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event
from typing import NoReturn

Leave = Callable[[], NoReturn]
"""Raises what the signal wants to raise."""


class StopRequest:
    """What a run is asked while it can answer."""

    def __init__(self) -> None:
        self._leave: Leave | None = None
        self._made, self._is_taken = Event(), False

    def make(self, leave: Leave) -> None:
        """Ask the run to stop; the first of several requests counts."""
        self._leave = self._leave or leave
        self._made.set()

    def take(self) -> bool:
        """Say whether the run has been asked since it began; True only once."""
        is_new = self._made.is_set() and not self._is_taken
        self._is_taken = self._is_taken or is_new
        return is_new

    def wait(self, limit_s: float) -> bool:
        """Wait for a request; return whether there is one."""
        return self._made.wait(limit_s)

    def leave(self) -> None:
        """End the command, if that was asked for."""
        if self._leave is not None:
            self._leave()


_answering: list[StopRequest] = []
"""The requests that runs of this process can answer now: one, or none."""


@contextmanager
def stop_request(*, is_answered: bool) -> Iterator[StopRequest]:
    """Give the request that `ask` makes within the `with` block, and leave at its end if there was
    one.

    Args:
        is_answered: False: nobody can make a request, so a signal raises at once.
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


def ask(leave: Leave) -> bool:
    """Ask the run under way to stop; return whether there is one that answers.

    Args:
        leave: is called once the run has ended.
    """
    for request in _answering:
        request.make(leave)
    return bool(_answering)
