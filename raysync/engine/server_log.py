"""What a parameter server has been sent since its last snapshot: enough to make its state again.

    base       the latest complete snapshot of the server; none at first: then it begins as it began
    entries    the calls behind that snapshot, in their order, with the gradients that they took

A gradient is held as long as its entry, where it was computed: on Ray in the object store, or, if
it is small, in the process of the driver. So the log is bounded: at `limit_bytes`, or after
`MAX_UPDATES`, the server is asked for a snapshot, which stays in memory. A checkpoint's snapshot
serves as well. Weights that a call left are not held here: who still needs them does that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ref

from raysync.config import Experiment
from raysync.engine.backend import Backend, Call, Value
from raysync.engine.messages import Message, SnapshotCall

MAX_UPDATES = 512
"""The updates after which a snapshot is requested, however small the gradients are: it bounds the
time that a lost server takes to come back, and the memory of small gradients, which Ray keeps in
the process of the driver."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedCall:
    """One call that was sent to the server."""

    message: Message
    inputs: Sequence[Value]
    call: ref[Call]
    """The call itself, while anything needs what it leaves behind."""


class ServerLog:
    """The log of one server."""

    def __init__(self, vector_bytes: float, limit_bytes: float) -> None:
        """
        Args:
            vector_bytes: the size of a gradient, and of the weights.
            limit_bytes: the size of the log at which a snapshot is requested.
        """
        self.entries: deque[LoggedCall] = deque()
        """The calls since the base, the oldest first."""
        self.base: Call | None = None
        """The latest complete snapshot."""
        self.is_whole = True
        """Whether base and entries make the state; False once the server cannot be snapshot."""
        self._vector_bytes, self._limit_bytes = vector_bytes, limit_bytes
        self._bytes, self._updates = 0.0, 0
        """The bytes and the updates of all entries."""
        self._added = 0
        """The number of calls that were ever added."""
        self._snapshots = 0
        """The number of snapshots that have not been answered."""

    @property
    def is_long(self) -> bool:
        """Whether a snapshot is due, and none is under way."""
        is_over = self._bytes >= self._limit_bytes or self._updates >= MAX_UPDATES
        return is_over and self.is_whole and not self._snapshots

    def add(self, message: Message, inputs: Sequence[Value], call: Call) -> None:
        """Add a call that was sent."""
        if not self.is_whole:
            return
        self.entries.append(LoggedCall(message, inputs, ref(call)))
        self._added += 1
        if isinstance(message, SnapshotCall):
            self._snapshots += 1
        else:
            self._bytes += len(inputs) * self._vector_bytes
            self._updates += bool(inputs)

    @property
    def position(self) -> int:
        """The number of the next call that is added."""
        return self._added

    def cut(self, snapshot: Call, position: int) -> None:
        """Begin with a complete snapshot, and forget all before it.

        Args:
            snapshot: its call.
            position: the `position` behind it.
        """
        self._snapshots -= 1
        first = self._added - len(self.entries)
        if position <= first:
            return  # one that was taken later was answered sooner
        self.base = snapshot
        for _ in range(position - first):
            entry = self.entries.popleft()
            if not isinstance(entry.message, SnapshotCall):
                self._bytes -= len(entry.inputs) * self._vector_bytes
                self._updates -= bool(entry.inputs)

    def miss(self, *, is_last: bool) -> None:
        """Take in that a snapshot failed.

        Args:
            is_last: the server cannot make any: then there is no log any more.
        """
        self._snapshots -= 1
        if is_last:
            self.is_whole, self.base = False, None
            self.entries.clear()


def server_log(
    backend: Backend, server: str, experiment: Experiment, vector_bytes: float
) -> ServerLog | None:
    """Return the log of a server; None if it cannot be lost, or is not to come back.

    Args:
        backend: knows whether it can be lost.
        server: its id.
        experiment: says how long the log may be, and whether what is lost comes back.
        vector_bytes: the size of a gradient, and of the weights.
    """
    cluster = experiment.cluster
    if not (backend.can_lose(server) and cluster.restarts.attempts and cluster.server_log_bytes):
        return None
    return ServerLog(vector_bytes, cluster.server_log_bytes)
