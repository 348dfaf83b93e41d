"""The actor's side of calls over pipes; the driver's is in `channels`.

    call       (number, message, handles of the inputs, handle of the slot for the value)
    relay      (number, RELAY, end of another actor's pipe, a frame for it): forwarded once the
               call of that number is done, unless that failed
    answer     (number of the call, answer, None), or (number, None, error)
    LEAVE      ends `Piped.run`, so that a Ray call can run

The numbers of an actor's calls rise. A call whose number is not above the last one is a duplicate,
or late, and is skipped.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

from raysync.cluster.actor_errors import ActorError
from raysync.cluster.transports.shared.pipes import End, frame, receive, send
from raysync.cluster.transports.shared.shared_vector import SharedVector
from raysync.engine.messages import Message, decode

LEAVE = None
RELAY = b""  # in place of the message
# the errors of a pipe that is gone, or has no reader
GONE = (BrokenPipeError, FileNotFoundError, ProcessLookupError)


class Piped(NamedTuple):
    """The service that executes calls from a pipe."""

    requests: End  # the calls' pipe, owned by the driver
    answers: End
    last: int  # the number of the last call sent before the service began

    def run(self, actor: object, meanwhile: Callable[[], None] = lambda: None) -> None:
        with (
            suppress(EOFError, *GONE),
            _opened(self.requests, os.O_RDONLY) as requests,
            _opened(self.answers, os.O_WRONLY) as answers,
            closing(Requests(actor, answers, self.last)) as calls,
        ):
            while (message := receive(requests)) is not LEAVE:
                if calls.process(message):
                    meanwhile()


@contextmanager
def _opened(end: End, mode: int) -> Iterator[int]:
    file = end.open(mode)
    try:
        yield file
    finally:
        os.close(file)


class Requests:
    """The calls of one actor, to execute or to relay."""

    def __init__(self, actor: Any, answers: int, last: int) -> None:
        self._actor, self._answers, self._last = actor, answers, last
        self._failed: set[int] = set()
        # pipe of another actor -> the file descriptor to write to it
        self._others: dict[End, int] = {}

    def process(self, message: tuple[Any, ...]) -> bool:
        """Execute or relay a message; return whether it was a call, which is answered now.

        Raises:
            BrokenPipeError: the driver is gone.
        """
        number, data, *arguments = message
        if data == RELAY:
            if number not in self._failed:
                self._relay(*arguments)
            return False
        if number > self._last:
            self._last = number
            answer, error = self._execute(decode(data), *arguments)
            if error is not None:
                self._failed.add(number)
            send(self._answers, frame((number, answer, error)))
        return True

    def _execute(self, message: Message, inputs: list[Any], into: Any) -> tuple[Any, str | None]:
        """Execute a call; return its answer, without the handles, and its error."""
        slot = None if into is None else SharedVector(*into)
        try:
            _, answer = self._actor.execute(message, [SharedVector(*each) for each in inputs], slot)
        except ActorError as error:
            return None, error.reason
        return answer, None

    def _relay(self, other: tuple[int, int, int], data: bytes) -> None:
        end = End(*other)
        with suppress(*GONE):
            if end not in self._others:
                self._close_unread()
                self._others[end] = end.open(os.O_WRONLY)
            send(self._others[end], data)

    def _close_unread(self) -> None:
        """Close the pipes without a reader."""
        for end, file in list(self._others.items()):
            poll = select.poll()
            poll.register(file, 0)
            if poll.poll(0):  # an error, which `poll` always reports
                os.close(self._others.pop(end))

    def close(self) -> None:
        for file in self._others.values():
            os.close(file)
