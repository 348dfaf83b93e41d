"""Calls over pipes: the hot calls to actors whose vectors are in shared memory.

Steps, updates and publications whose inputs are handles travel over two pipes for each actor: a Ray
call costs far more processor time. All else stays with Ray: deaths, and every other method.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from selectors import EVENT_READ, DefaultSelector
from threading import Lock
from typing import Any, NamedTuple

from raysync.cluster.clock import now_s
from raysync.cluster.transports.shared.pipes import end_of, frame, receive, send
from raysync.cluster.transports.shared.segments import Handle
from raysync.cluster.transports.shared.serving import LEAVE, RELAY, Piped
from raysync.cluster.transports.transport import (
    CallRequest,
    IssuedCall,
    Lease,
    Patch,
    Remote,
    Upload,
)
from raysync.engine.backend import Failure
from raysync.engine.messages import encode

# The unanswered bytes of an actor, at most, relays included. A quarter of a pipe's capacity, so
# that a frozen actor does not block the driver.
WINDOW_BYTES = 16 * 2**10


class PipedCall:
    """A call over a pipe; its values are handles, known before it is done."""

    def __init__(self, channel: Channel, request: CallRequest) -> None:
        self.leases: tuple[Lease, ...] = request.leases
        self.upload: Upload | None = request.upload
        self.is_done = False
        self.answer: Any = None  # a `Failure` if it failed
        self.channel = channel
        self.request: CallRequest | None = request  # None: it is done
        self.reads = request.reads  # the leases of its inputs, held until it is done
        self.number = 0  # among its actor's requests; 0: not sent
        # the unfinished or failed calls that make its inputs
        self.needs: list[PipedCall] = [need for need in request.inputs if not need.has_succeeded]
        self.dependents: list[Channel] = []  # channels whose next call waits for this one
        self._watchers: list[tuple[Callable[[Any], None], Any]] = []
        self._replaces: PipedCall | None = None

    @property
    def has_succeeded(self) -> bool:
        return self.is_done and not isinstance(self.answer, Failure)

    @property
    def parts(self) -> tuple[Remote, ...]:
        return tuple(lease.handle for lease in self.leases[-1:])

    def to_frame(self, number: int) -> bytes:
        assert self.request is not None, "a call that is done"
        inputs = [_as_tuple(part) for call in self.request.inputs for part in call.parts]
        into = _as_tuple(self.request.leases[0].handle) if self.request.leases else None
        return frame((number, encode(self.request.message), inputs, into))

    def value(self, index: int) -> tuple[Remote, ...]:
        return self.parts

    def watch(self, then: Callable[[Any], None], argument: Any) -> None:
        if self.is_done:
            self.channel.channels.due.append((then, argument))
        else:
            self._watchers.append((then, argument))

    @property
    def failure(self) -> Failure | None:
        return self.answer if isinstance(self.answer, Failure) else None

    def finish(self, answer: Any) -> None:
        """Settle the call, and release whatever waits for it."""
        self.is_done, self.answer, self.reads = True, answer, ()
        # The calls of its inputs, and with them their memory: they would be a chain of all calls.
        self.request, self.needs = None, []
        self.channel.channels.due += self._watchers
        self._watchers = []
        dependents, self.dependents = self.dependents, []
        if self._replaces is not None:
            self._replaces.finish(answer)
        for channel in dependents:
            channel.advance()

    def failure_within(self, patience_s: float) -> Failure | None:
        self.channel.channels.await_call(self, patience_s)
        return self.failure

    def follow(self, retry: IssuedCall, patched: Patch) -> None:
        # there is one shard, so nothing is patched
        assert isinstance(retry, PipedCall), "a retry has the inputs of the lost call"
        self.is_done, self.answer, self.channel = False, None, retry.channel
        self.leases, self.number = retry.leases, retry.number
        retry._replaces = self


def _as_tuple(remote: Remote) -> tuple[int, ...]:
    # Pickling the name of a handle's class would take longer.
    assert isinstance(remote, Handle), "a vector that is not in shared memory"
    return tuple(remote)


class Relayed(NamedTuple):
    """A call forwarded by another actor."""

    call: PipedCall
    need: PipedCall  # that actor's call, which makes the input
    via: Channel
    data: bytes


class Channel:
    """The pipes to one actor, and the queue of its calls, in order, Ray calls included.

    An actor opens the driver's pipes through `/proc`, and its reads block. It reads the end of the
    pipe when the driver is gone; the driver learns of its death from Ray: its `serve` fails. If an
    input fails, so does the call.
    """

    def __init__(self, channels: Channels, actor: Any, name: str) -> None:
        self.channels, self._actor, self.name = channels, actor, name
        self._files = read, self._requests, self.answers, write = (*os.pipe(), *os.pipe())
        self._ends = end_of(read), end_of(write)
        self._end = tuple(end_of(self._requests))  # where other actors write its requests
        self._queue: deque[PipedCall] = deque()
        # the number of the latest request, and of the latest before LEAVE
        self._number = self._last_before_leave = 0
        # number -> (unanswered call, its size in bytes), the oldest first
        self._sent: dict[int, tuple[PipedCall, int]] = {}
        self._unanswered_bytes = 0
        self._relayed: Relayed | None = None  # the last call sent, if relayed and unanswered
        self.failure: Failure | None = None  # why the actor is gone
        # the reference of the latest `serve`; None: the actor is to carry out a Ray call first
        self._serving: Any = None

    def call(self, call: PipedCall) -> None:
        """Queue a call, and send it once it is first and its inputs are ready."""
        if self._serving is None and self.failure is None:
            self._serve()
        self._queue.append(call)
        self.advance()

    def advance(self) -> None:
        """Send from the queue until a call has to wait."""
        if self._relayed is not None:
            self._settle_relayed(self._relayed)
        while self._queue and self._relayed is None:
            call = self._queue[0]
            failure = self.failure
            if call.needs and failure is None:
                failure = next((need.failure for need in call.needs if need.failure), None)
                call.needs = [need for need in call.needs if not need.is_done]
            if failure is not None:
                self._queue.popleft().finish(failure)
                continue
            data = call.to_frame(self._number + 1)
            if not self._has_room(len(data)):
                return
            if not call.needs:
                send(self._requests, data)
            elif not self._relay(call, data):
                return
            self._queue.popleft()
            self._number = call.number = self._number + 1
            self._sent[call.number] = call, 0
            self._add_bytes(call.number, len(data))

    def _has_room(self, size: int) -> bool:
        return not self._sent or self._unanswered_bytes + size <= WINDOW_BYTES

    def _add_bytes(self, number: int, size: int) -> None:
        call, before = self._sent[number]
        self._sent[number] = call, before + size
        self._unanswered_bytes += size

    def _relay(self, call: PipedCall, data: bytes) -> bool:
        """Send a call through the actor that makes its input; False: it waits for the input.

        That actor forwards it after its answer, so a worker begins a step without waking the driver
        first.
        """
        [need, *others] = call.needs
        if self not in need.dependents:
            need.dependents.append(self)
        via = need.channel
        # A call waits if several actors make its inputs, if the call that makes one is not sent, or
        # if a pipe is full.
        if others or not via.forward(need, self._end, data):
            return False
        self._relayed = Relayed(call, need, via, data)
        return True

    def forward(self, need: PipedCall, end: tuple[int, ...], data: bytes) -> bool:
        """Let this actor send a frame to another after it answers `need`; False: it cannot."""
        if need.number <= self._last_before_leave or self._relayed is not None:
            return False  # the actor would forward the frame before it reaches that call
        relay = frame((need.number, RELAY, end, data))
        if not self._has_room(len(relay)):
            return False
        send(self._requests, relay)
        self._add_bytes(need.number, len(relay))
        return True

    def _settle_relayed(self, relayed: Relayed) -> None:
        """Resend or fail a relayed call whose forwarding actor, or input, has failed."""
        call, need, via, data = relayed
        if need.failure is not None:
            self._relayed = None
            self._remove_sent(call.number).finish(need.failure)
        elif via.failure is not None:
            self._relayed = None
            send(self._requests, data)  # perhaps a duplicate, which is skipped

    def _remove_sent(self, number: int) -> PipedCall:
        """Remove a call that has been answered, or never will be."""
        call, size = self._sent.pop(number)
        self._unanswered_bytes -= size
        return call

    def receive_answer(self) -> None:
        number, answer, error = receive(self.answers)
        call = self._remove_sent(number)
        if self._relayed is not None and self._relayed.call is call:
            self._relayed = None
        call.finish(answer if error is None else Failure("raised", error, self.name))
        self.advance()

    def leave(self) -> None:
        """Let a Ray call follow in its turn, behind all calls over the pipes.

        Meanwhile answers of other actors are received, and this actor may turn out to be dead.
        """
        while (self._queue or self._relayed) and self.failure is None:
            self.channels.pump(None)  # until all earlier calls are sent
        if self.failure is None and self._serving is not None:
            send(self._requests, frame(LEAVE))  # ends `serve`; the next call over a pipe starts it
            self._serving, self._last_before_leave = None, self._number

    def fail(self, failure: Failure) -> None:
        """Fail all unanswered calls: the actor is gone."""
        if self.failure is not None:
            return
        while self._sent and _has_data(self.answers):  # a push counts if its handle has returned
            self.receive_answer()
        self.failure, self._relayed = failure, None
        sent, self._sent = self._sent, {}
        for call, _ in sent.values():
            call.finish(failure)
        self.advance()
        self.channels.forget(self)
        for file in self._files:
            os.close(file)

    def _serve(self) -> None:
        self._serving = self._actor.serve.remote(Piped(*self._ends, self._number))
        self.channels.expect(self._serving, self)

    def is_served_by(self, serving: Any) -> bool:
        """Whether this Ray call is the latest `serve`."""
        return self._serving is serving


def _has_data(file: int) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(0))


class Channels:
    """The channels of a run, and the Ray references that its driver waits for."""

    def __init__(self, failure_of: Callable[[Any], Failure | None]) -> None:
        # the callbacks to call next, with their arguments
        self.due: list[tuple[Callable[[Any], None], Any]] = []
        self._failure_of = failure_of
        self._channels: dict[str, Channel] = {}
        self._serving: dict[Any, Channel] = {}  # reference of a `serve` -> its channel
        self._expected: set[Any] = set()
        self._arrived: deque[Any] = deque()
        # Ray references that are ready, except for those of `serve`
        self._references: list[Any] = []
        self._lock, self._is_closed = Lock(), False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector = DefaultSelector()
        self._selector.register(self._wake, EVENT_READ, None)

    def open(self, name: str, actor: Any) -> Channel:
        """Return the channel of an actor, opened at its first call."""
        if name not in self._channels:
            self._channels[name] = channel = Channel(self, actor, name)
            self._selector.register(channel.answers, EVENT_READ, channel)
        return self._channels[name]

    def get(self, name: str) -> Channel | None:
        return self._channels.get(name)

    def forget(self, channel: Channel) -> None:
        """Remove the channel of a dead actor."""
        if self._channels.get(channel.name) is channel:
            del self._channels[channel.name]
            self._selector.unregister(channel.answers)
        self._serving = {key: other for key, other in self._serving.items() if other is not channel}
        for other in list(self._channels.values()):
            other.advance()

    def expect(self, reference: Any, channel: Channel | None = None) -> None:
        """Wake up when a Ray reference is ready."""
        if reference in self._expected:
            return
        self._expected.add(reference)
        if channel is not None:
            self._serving[reference] = channel
        reference.future().add_done_callback(lambda _: self._notify(reference))

    def _notify(self, reference: Any) -> None:  # runs in a thread of Ray's
        with self._lock:
            self._arrived.append(reference)
            if not self._is_closed:
                os.eventfd_write(self._wake, 1)

    def pump(self, timeout_s: float | None) -> None:
        """Wait for an answer or a Ray reference, and handle all that are ready."""
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif key.data.failure is None:
                key.data.receive_answer()
        while self._arrived:
            reference = self._arrived.popleft()
            self._expected.discard(reference)
            channel = self._serving.pop(reference, None)
            if channel is None:
                self._references.append(reference)
            elif channel.is_served_by(reference):
                failure = self._failure_of(reference)
                channel.fail(failure or Failure("died", "it has left the run", channel.name))

    def await_ready(self, timeout_s: float) -> Iterator[Any]:
        """Yield ready Ray references, and call the callbacks of answers over pipes."""
        if not self.due:
            self.pump(timeout_s)
        while self._references or self.due:
            references, self._references = self._references, []
            yield from references
            due, self.due = self.due, []
            for then, argument in due:
                then(argument)

    def await_call(self, call: PipedCall, patience_s: float) -> None:
        """Wait until a call is done; no callback is called meanwhile.

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
        for channel in list(self._channels.values()):
            channel.fail(Failure("other", "the run is over"))
        self._selector.close()
        with self._lock:
            self._is_closed = True
            os.close(self._wake)
