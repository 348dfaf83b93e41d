"""The Ray backend where vectors travel by Ray Direct Transport.

A call leaves its vector in a buffer of its actor, and a second call behind it, `buffer`, returns
that vector for others to read (Ray allows one value a call). So

    step     -> report                    on the worker, which leaves the gradient in a buffer
    buffer   -> gradient                  behind it: no further round trip
    take     <- gradient                  on the server, once both are there: it has its own copy
    apply_and_publish, publish            on the server, take kept gradients by their numbers
    buffer   -> weights                   behind it, for steps and evaluations

A push is the arrival of its gradient, here as ever: the server has answered `take`. Only then may
the buffer of the worker be written again, and only then is there a push that its worker's death
cannot take away. A gradient that dies with its worker before that was never pushed: the worker has
`Left`, and nothing waits for it longer than Ray does for a transfer that hangs (60 s).

What the server has been sent lives in its process alone, so it cannot come back with the weights
that it had: its loss takes the run back to its newest checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ray.exceptions import RayDirectTransportError, RayError, RayTaskError

from raysync.cluster.backend import Delayed, RayBackend, RayCall, Snapshot, Upload
from raysync.cluster.direct_transport import NIXL
from raysync.cluster.direct_vectors import DirectVectors, Room
from raysync.cluster.shards import Parts, Shards
from raysync.engine.backend import Failure

PUBLISHING = frozenset({"apply_and_publish", "publish"})
"""The methods of a server that leave weights in a buffer."""


class DirectBackend(RayBackend):
    """The world of one run on Ray, whose vectors are read from one actor's memory into another's.

    Everything else is the same: it says only how a step, an update, a publication and a delivery
    are called.
    """

    def __init__(self, *arguments: Any, vectors: DirectVectors, **more: Any) -> None:
        """
        Args:
            arguments: see `RayBackend`.
            vectors: the buffers of the run, which has one server in one part.
            more: see `RayBackend`.
        """
        super().__init__(*arguments, **more)
        self._vectors = vectors

    def _call(self, actor: str, method: str, fields: list[Any], inputs: Sequence[Any]) -> RayCall:
        shards = self._servers.get(actor)
        if shards is None:
            return super()._call(actor, method, fields, inputs)
        self._free(shards)
        vectors = [each if isinstance(each, tuple) else at_server(each) for each in inputs]
        if method not in PUBLISHING:
            report, *values = shards.call(method, fields, vectors)
            kind = Snapshot if method == "snapshot" else RayCall
            return kind(self, report, *values)
        room = self._vectors.weights()
        into: list[Any] = [room.handle]
        report, *_ = shards.call(method, fields, vectors, into)
        weights = shards.first.buffer.options(tensor_transport=NIXL).remote(room.handle)
        return RayCall(self, report, (weights,), leases=(room,))

    def _step(
        self, worker: str, remote: Any, fields: list[Any], weights: Iterable[Any], reads: Any
    ) -> RayCall:
        room = self._vectors.gradient(worker)
        _, report = remote(fields, *weights, into=room.handle)
        gradient = self._buffer_of(worker)(room.handle)
        upload = Upload(worker, self._upload_s(worker, fields))
        return _Gradient(self, report, gradient, room, self._vectors.kept(), upload, reads)

    def _buffer_of(self, worker: str) -> Any:
        key = worker, "buffer"
        if key not in self._methods:
            method = self._workers[worker].buffer
            self._methods[key] = method.options(tensor_transport=NIXL).remote
        return self._methods[key]

    def deliver(self, value: Any, actor: str) -> tuple[RayCall, ...]:
        """See `Backend.deliver`. The first call is that of the emulated link, which ends by itself:
        a gradient that is later than the deadline is so by the server's fault, since Ray gives a
        transfer that hangs up before that.
        """
        assert isinstance(value, _Gradient), "only gradients are delivered"
        shards = self._servers[actor]
        self._free(shards)
        taken = shards.first.take.remote([value.kept.handle.number], value.source)
        upload = value.upload
        assert upload is not None, "a gradient without a way"
        way = Delayed(self, self.now + upload.emulated_s)
        return way, RayCall(self, (taken,), reads=(value.begin_transfer(),))

    def _free(self, shards: Shards) -> None:
        """Let the server forget what nothing needs any more. It works its calls off in order, so it
        still has what was sent with one of those before.
        """
        if numbers := self._vectors.needless():
            shards.first.free.remote([numbers])

    def can_lose(self, server: str) -> bool:
        """See `Backend.can_lose`: it alone has the gradients."""
        return False

    def failure_of(self, error: RayError) -> Failure:
        """See `RayBackend.failure_of`; a transfer that failed is nobody's code, and does not say
        which end of it is to blame.
        """
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, RayDirectTransportError | TimeoutError):
            *_, last = str(cause).strip().splitlines() or [""]
            return Failure("lost", f"what it needs could not be read from another process: {last}")
        return super().failure_of(error)

    def kill(self, actor: str) -> None:
        """See `Backend.kill`."""
        super().kill(actor)
        self._vectors.forget(actor)


def at_server(call: RayCall) -> Parts:
    """Return the parts of a value as its server has them: by the handles of what it keeps itself,
    otherwise by the references that it is known by everywhere.
    """
    rooms = [lease for lease in call.leases if isinstance(lease, Room)]
    return tuple(room.handle for room in rooms) or call.parts


class _Gradient(RayCall):
    """A step, and the gradient that it leaves in a buffer of its worker."""

    __slots__ = ("_room", "kept", "source")

    def __init__(
        self,
        backend: RayBackend,
        report: Any,
        source: Any,
        room: Room,
        kept: Room,
        upload: Upload,
        reads: Any,
    ) -> None:
        """
        Args:
            backend: see `RayCall`.
            report: the reference of the step's report.
            source: that of the gradient, in the worker's memory. The call is done once it is there,
                too: a call on the server that waited for it would hold up all others.
            room: its buffer there.
            kept: what it takes up on the server, once that has taken it.
            upload: see `RayCall`.
            reads: see `RayCall`.
        """
        super().__init__(backend, (report, source), upload=upload, leases=(kept,), reads=reads)
        self.source, self.kept = source, kept
        self._room: Room | None = room

    @property
    def answer(self) -> Any:
        """See `Call.answer`; the gradient itself is for the server."""
        return RayCall(self._backend, self.report[:1]).answer

    def begin_transfer(self) -> Room:
        """Return the room of the buffer, which is not held here any longer."""
        room, self._room = self._room, None
        assert room is not None, "it was delivered already"
        return room
