"""The actor's side of calls over pipes; the driver's is in `channels`.

    call       (method, number, fields, handles of the inputs, handle of the slot for the value)
    relay      (RELAY, number, end of another actor's pipe, a frame for it): to be passed on once
               the call of that number is done; if it has failed, it is not
    answer     (number of the call, what it tells, None), or (number, None, how it failed)
    LEAVE      ends `serve`, so that a call of Ray's gets its turn

The numbers of an actor's calls rise. A call whose number is not above the last one is not carried
out: it has come by two ways, or too late.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from raysync.cluster.actor_errors import ActorError
from raysync.cluster.pipes import End, frame, receive, send
from raysync.cluster.shared_memory import Handle

LEAVE = None
RELAY = ""
"""What stands in place of a method."""


class Ends(NamedTuple):
    """The ends of an actor's pipes, which are the driver's files."""

    requests: End
    answers: End


def serve(actor: Any, ends: Ends, last: int) -> None:
    """Carry out the calls that come over a pipe, until one says to leave or the driver is gone.

    Args:
        actor: has the methods.
        ends: what the calls come by, and the answers go by.
        last: the number of the last call before.
    """
    failed = set()
    others: dict[End, int] = {}
    with (
        _opened(ends.requests, os.O_RDONLY) as requests,
        _opened(ends.answers, os.O_WRONLY) as answers,
        suppress(EOFError, BrokenPipeError),
    ):
        try:
            while (message := receive(requests)) is not LEAVE:
                method, number, *arguments = message
                if method == RELAY:
                    if number not in failed:
                        _relay(others, *arguments)
                elif number > last:
                    last = number
                    told, why = _carried_out(actor, method, *arguments)
                    if why is not None:
                        failed.add(number)
                    send(answers, frame((number, told, why)))
        finally:
            for file in others.values():
                os.close(file)


@contextmanager
def _opened(end: End, mode: int) -> Iterator[int]:
    file = end.open(mode)
    try:
        yield file
    finally:
        os.close(file)


def _carried_out(
    actor: Any, method: str, fields: Any, inputs: list[Any], into: Any
) -> tuple[Any, str | None]:
    """Call a method; return what it tells, without the handles of vectors, which the driver has,
    and how it failed.
    """
    options = {} if into is None else {"into": Handle(*into)}
    try:
        answer = getattr(actor, method)(fields, *(Handle(*each) for each in inputs), **options)
    except ActorError as error:
        return None, error.reason
    if isinstance(answer, Handle):
        return None, None
    return (answer[-1] if isinstance(answer, tuple) else answer), None


def _relay(others: dict[End, int], end: tuple[int, int, int], data: bytes) -> None:
    """Pass a frame on to another actor, unless that is gone.

    Args:
        others: the pipes that have been opened.
        end: the end of its pipe.
        data: the frame.
    """
    key = End(*end)
    with suppress(OSError):
        if key not in others:
            _close_gone(others)
            others[key] = key.open(os.O_WRONLY)
        send(others[key], data)


def _close_gone(others: dict[End, int]) -> None:
    """Close the pipes that nothing reads any more."""
    for end, file in list(others.items()):
        poll = select.poll()
        poll.register(file, 0)
        if poll.poll(0):  # POLLERR
            os.close(others.pop(end))
