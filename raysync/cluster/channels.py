"""Calls over pipes: how the hot calls reach actors whose vectors are in shared memory.

A call of Ray's costs both its ends about a millisecond of a processor; one over a pipe costs some
hundredths. So steps, updates and publications whose inputs are handles travel over two pipes for
each actor. While it waits it is blocked in a read: nothing polls or spins. All else stays with Ray:
the actors and their places, who is dead, and every other method.

    serve       a method of the actor, in which it carries out what comes over its pipe, in order
    leave       what it is sent to end `serve`, so that a call of Ray's gets its turn; the next
                `serve` is queued behind that. So all calls of an actor keep their order

An input of a call may not be there yet: then the call waits here, and all behind it, until the
actor that makes it has answered, as Ray would have it. If that fails, so does the call.

The pipes have no names: the actor opens the driver's own through `/proc`. It sees the end of its
pipe when the driver is gone; that an actor is gone the driver learns from Ray, whose `serve` fails.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pickle import HIGHEST_PROTOCOL, dumps
from selectors import EVENT_READ, DefaultSelector
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from raysync.cluster.actor_errors import ActorError
from raysync.cluster.clock import now_s
from raysync.cluster.shared_memory import Handle, Lease
from raysync.engine.backend import Failure

Issued = TypeVar("Issued")

HOT = frozenset({"step", "apply", "apply_and_publish", "publish"})
"""The methods that are called over pipes."""
WINDOW_BYTES = 32 * 2**10
"""How much an actor is sent before it answers: less than a pipe holds, so that a frozen actor does
not block the driver."""
LEAVE = None
"""What ends `serve`."""


class Ends(NamedTuple):
    """The ends of an actor's pipes, which are the driver's files."""

    process: int
    requests: int
    answers: int


def serve(actor: Any, ends: Ends) -> None:
    """Carry out the calls that come over a pipe, until one says to leave or the driver is gone."""
    with (
        Connection(_opened(ends, ends.requests, os.O_RDONLY), writable=False) as requests,
        Connection(_opened(ends, ends.answers, os.O_WRONLY), readable=False) as answers,
        suppress(EOFError, BrokenPipeError),
    ):
        while (request := requests.recv()) is not LEAVE:
            method, fields, inputs, options = request
            try:
                answer = getattr(actor, method)(fields, *inputs, **options)
            except ActorError as error:
                answer = error
            answers.send(answer)


def _opened(ends: Ends, file: int, mode: int) -> int:
    return os.open(f"/proc/{ends.process}/fd/{file}", mode)


class PipedCall:
    """A call over a pipe; its values are handles, which are known before the call is done."""

    def __init__(
        self,
        channel: Channel,
        request: tuple[str, Any, Sequence[Handle], dict[str, Any]],
        needs: Iterable[PipedCall],
        leases: tuple[Lease, ...] = (),
        reads: tuple[Lease, ...] = (),
        upload: Any = None,
    ) -> None:
        """
        Args:
            channel: the pipes of its actor.
            request: method, fields, inputs and options.
            needs: the calls that make its inputs.
            leases: the slots of what it makes.
            reads: those of its inputs, which are held until it is done.
            upload: see `RayCall`.
        """
        self.leases, self.upload, self.is_done = leases, upload, False
        self.result: Any = None
        """The answer, or a `Failure`."""
        self.request, self.reads, self._channel = request, reads, channel
        self.needs = [need for need in needs if not need.is_there]
        self.dependents: list[Channel] = []
        """The channels whose next call waits for this one."""
        self._watchers: list[tuple[Callable[[Any], None], Any]] = []
        self._stands_for: PipedCall | None = None

    @property
    def is_there(self) -> bool:
        """Whether it is done, and has not failed."""
        return self.is_done and not isinstance(self.result, Failure)

    @property
    def parts(self) -> tuple[Handle, ...]:
        """The handle of its value; see `RayCall.parts`."""
        return tuple(lease.handle for lease in self.leases[-1:])

    def value(self, index: int) -> tuple[Handle, ...]:
        """See `Call.value`; there is only one."""
        return self.parts

    @property
    def answer(self) -> Any:
        """See `Call.answer`."""
        return self.result

    def watch(self, then: Callable[[Any], None], argument: Any) -> None:
        """See `Backend.watch`."""
        if self.is_done:
            self._channel.channels.due.append((then, argument))
        else:
            self._watchers.append((then, argument))

    def finish(self, result: Any) -> None:
        """Take in what came of it."""
        self.is_done, self.result, self.reads = True, result, ()
        self._channel.channels.due += self._watchers
        self._watchers = []
        dependents, self.dependents = self.dependents, []
        if self._stands_for is not None:
            self._stands_for.finish(result)
        for channel in dependents:
            channel.advance()

    def follow(self, again: PipedCall) -> None:
        """Stand for a call that makes again what this one did not."""
        self.is_done, self.result, self._channel = False, None, again._channel
        self.leases = again.leases
        again._stands_for = self


class Channel:
    """The pipes to one actor, and the calls that wait for their turn there."""

    def __init__(self, channels: Channels, actor: Any, name: str) -> None:
        """
        Args:
            channels: those of the run.
            actor: Ray's handle of it.
            name: its id.
        """
        self.channels, self._actor, self.name = channels, actor, name
        self._kept = ends = [*os.pipe(), *os.pipe()]
        self._ends = Ends(os.getpid(), ends[0], ends[3])
        self._requests = Connection(ends[1], readable=False)
        self.answers = Connection(ends[2], writable=False)
        self._queue: deque[PipedCall] = deque()
        self._sent: deque[tuple[PipedCall, int]] = deque()
        """What has not been answered, with its size in bytes."""
        self._unanswered_bytes = 0
        self.failure: Failure | None = None
        """Why it is gone."""
        self._serve()

    def call(self, call: PipedCall) -> None:
        """Send a call as soon as it is its turn, and its inputs are there."""
        self._queue.append(call)
        self.advance()

    def advance(self) -> None:
        """Send what can be sent."""
        while self._queue:
            call = self._queue[0]
            if self.failure is not None:
                self._queue.popleft().finish(self.failure)
                continue
            failed = next(
                (need.result for need in call.needs if need.is_done and not need.is_there), None
            )
            if failed is not None:
                self._queue.popleft().finish(failed)
                continue
            call.needs = [need for need in call.needs if not need.is_done]
            if call.needs:
                if self not in call.needs[0].dependents:
                    call.needs[0].dependents.append(self)
                return
            data = dumps(call.request, HIGHEST_PROTOCOL)
            if self._sent and self._unanswered_bytes + len(data) > WINDOW_BYTES:
                return
            self._queue.popleft()
            self._sent.append((call, len(data)))
            self._unanswered_bytes += len(data)
            self._requests.send_bytes(data)

    def answered(self) -> None:
        """Take in the answer that has come."""
        answer = self.answers.recv()
        call, size = self._sent.popleft()
        self._unanswered_bytes -= size
        if isinstance(answer, ActorError):
            answer = Failure("raised", answer.reason, self.name)
        elif call.request[0] == "step":
            answer = answer[-1]
        call.finish(answer)
        self.advance()

    def by_ray(self, issue: Callable[[], Issued]) -> Issued:
        """Issue a call of Ray's in its turn, behind all that has been called over the pipes."""
        while self._queue and self.failure is None:
            self.channels.pump(None)  # until what is in front of it has been sent
        self._requests.send(LEAVE)
        self._serving = None
        issued = issue()
        self._serve()
        return issued

    def fail(self, failure: Failure) -> None:
        """Take in that the actor is gone: what it has not answered fails."""
        if self.failure is not None:
            return
        while self._sent and self.answers.poll():  # a push counts if its handle has returned
            self.answered()
        self.failure = failure
        sent, self._sent = self._sent, deque()
        for call, _ in sent:
            call.finish(failure)
        self.advance()
        self.channels.forget(self)
        self._requests.close()
        self.answers.close()
        for file in (self._ends.requests, self._ends.answers):
            os.close(file)

    def _serve(self) -> None:
        self._serving = serving = self._actor.serve.remote(self._ends)
        self.channels.expect(serving, self)

    def is_served_by(self, serving: Any) -> bool:
        """Say whether that call of Ray's is the latest `serve`."""
        return self._serving is serving


class Channels:
    """The channels of a run, and whatever its driver waits for besides."""

    def __init__(self, failure_of: Callable[[Any], Failure | None]) -> None:
        """
        Args:
            failure_of: says how a reference of Ray's has failed that is there.
        """
        self.due: list[tuple[Callable[[Any], None], Any]] = []
        """What is to be called back."""
        self._failure_of = failure_of
        self._channels: dict[str, Channel] = {}
        self._serving: dict[Any, Channel] = {}
        self._expected: set[Any] = set()
        self._arrived: deque[Any] = deque()
        self.references: list[Any] = []
        """What is there of Ray's references, but for those of `serve`."""
        self._lock, self._is_closed = Lock(), False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = DefaultSelector()
        self._selector.register(self._wake, EVENT_READ, None)

    def channel(self, name: str, actor: Any) -> Channel:
        """Return the channel of an actor, which is made with its first call."""
        if name not in self._channels:
            self._channels[name] = channel = Channel(self, actor, name)
            self._selector.register(channel.answers.fileno(), EVENT_READ, channel)
        return self._channels[name]

    def get(self, name: str) -> Channel | None:
        """Return the channel of an actor, if it has one."""
        return self._channels.get(name)

    def forget(self, channel: Channel) -> None:
        """Listen no more to a channel."""
        if self._channels.get(channel.name) is channel:
            del self._channels[channel.name]
            self._selector.unregister(channel.answers.fileno())
        self._serving = {key: each for key, each in self._serving.items() if each is not channel}

    def expect(self, reference: Any, channel: Channel | None = None) -> None:
        """Wake up when a reference of Ray's is there."""
        if reference in self._expected:
            return
        self._expected.add(reference)
        if channel is not None:
            self._serving[reference] = channel
        reference.future().add_done_callback(lambda _: self._ring(reference))

    def _ring(self, reference: Any) -> None:  # in a thread of Ray's
        with self._lock:
            self._arrived.append(reference)
            if not self._is_closed:
                os.eventfd_write(self._wake, 1)

    def pump(self, timeout_s: float | None) -> None:
        """Wait for an answer, or for a reference of Ray's, and take in all that is there."""
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif key.data.failure is None:
                key.data.answered()
        while self._arrived:
            reference = self._arrived.popleft()
            self._expected.discard(reference)
            channel = self._serving.pop(reference, None)
            if channel is None:
                self.references.append(reference)
            elif channel.is_served_by(reference):
                failure = self._failure_of(reference)
                channel.fail(failure or Failure("died", "it has left the run", channel.name))

    def await_call(self, call: PipedCall, patience_s: float) -> None:
        """Wait until a call is done; nothing is called back meanwhile.

        Raises:
            TimeoutError: it is not done in time.
        """
        until_s = now_s() + patience_s
        while not call.is_done:
            left_s = until_s - now_s()
            self.pump(max(0.0, left_s))
            if left_s <= 0 and not call.is_done:
                raise TimeoutError

    def close(self) -> None:
        """Let all actors leave, and close all files."""
        for channel in list(self._channels.values()):
            channel.fail(Failure("other", "the run is over"))
        self._selector.close()
        with self._lock:
            self._is_closed = True
            os.close(self._wake)
