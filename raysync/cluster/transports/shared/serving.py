"""The actor's side of calls over pipes; the driver's is in `channels`.

    call       (number, message, handles of the inputs, handle of the slot for the value)
    relay      (number, RELAY, end of another actor's pipe, a frame for it): to be passed on once
               the call of that number is done; if it has failed, it is not
    answer     (number of the call, what it tells, None), or (number, None, how it failed)
    LEAVE      ends `Piped.run`, so that a call of Ray's gets its turn

The numbers of an actor's calls rise. A call whose number is not above the last one is not carried
out: it has come by two ways, or too late.
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
from raysync.engine.messages import Message, decode, method_of

LEAVE = None
RELAY = b""
"""What stands in place of a message."""
GONE = (BrokenPipeError, FileNotFoundError, ProcessLookupError)
"""The errors of a pipe that is gone, or of one whose readers are."""


class Piped(NamedTuple):
    """The calls that come to an actor over a pipe: see `Service`."""

    requests: End
    """What the calls come by; the file is the driver's."""
    answers: End
    last: int
    """The number of the last call before."""

    def run(self, actor: object, meanwhile: Callable[[], None] = lambda: None) -> None:
        with (
            suppress(EOFError, *GONE),
            _opened(self.requests, os.O_RDONLY) as requests,
            _opened(self.answers, os.O_WRONLY) as answers,
            closing(Requests(actor, answers, self.last)) as taken,
        ):
            while (message := receive(requests)) is not LEAVE:
                if taken.take(message):
                    meanwhile()


@contextmanager
def _opened(end: End, mode: int) -> Iterator[int]:
    file = end.open(mode)
    try:
        yield file
    finally:
        os.close(file)


class Requests:
    """It carries calls out, and passes others on."""

    def __init__(self, actor: Any, answers: int, last: int) -> None:
        """
        Args:
            actor: has the methods.
            answers: the file that answers are written to.
            last: the number of the last call before.
        """
        self._actor, self._answers, self._last = actor, answers, last
        self._failed: set[int] = set()
        self._others: dict[End, int] = {}
        """The pipes of other actors, and the files by which they are written to."""

    def take(self, message: tuple[Any, ...]) -> bool:
        """Carry out what a message asks for; return whether that was a call, which is answered now.

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
            told, why = self._carried_out(decode(data), *arguments)
            if why is not None:
                self._failed.add(number)
            send(self._answers, frame((number, told, why)))
        return True

    def _carried_out(
        self, message: Message, inputs: list[Any], into: Any
    ) -> tuple[Any, str | None]:
        """Call the method of a message; return what it tells, without the handles of vectors,
        which the driver has, and how it failed.
        """
        options = {} if into is None else {"into": SharedVector(*into)}
        try:
            told = getattr(self._actor, method_of(message))(
                message, *(SharedVector(*each) for each in inputs), **options
            )
        except ActorError as error:
            return None, error.reason
        return (told[-1] if isinstance(told, tuple) else told), None

    def _relay(self, other: tuple[int, int, int], data: bytes) -> None:
        """Pass a frame on to another actor, unless that is gone."""
        end = End(*other)
        with suppress(*GONE):
            if end not in self._others:
                self._close_gone()
                self._others[end] = end.open(os.O_WRONLY)
            send(self._others[end], data)

    def _close_gone(self) -> None:
        """Close the pipes that nothing reads any more."""
        for end, file in list(self._others.items()):
            poll = select.poll()
            poll.register(file, 0)
            if poll.poll(0):  # an error, which is always told
                os.close(self._others.pop(end))

    def close(self) -> None:
        """Close the pipes of other actors."""
        for file in self._others.values():
            os.close(file)
