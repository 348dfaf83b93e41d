"""The calls to a parameter server since its last snapshot, from which its state can be rebuilt."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ref

from raysync.config import Experiment
from raysync.engine.backend import Backend, Call, Value
from raysync.engine.messages import Message, SnapshotCall

# base       the server's latest complete snapshot; none: it begins as the run began
# entries    the calls behind it, in order, with their gradients
#
# An entry holds its gradients where they were computed: on Ray in the object store or, if small, in
# the driver's process. So the log is bounded: at `limit_bytes`, or after `MAX_UPDATES`, a snapshot
# is requested, which stays in memory. A checkpoint's snapshot serves as well. The log does not hold
# the weights that a call left.

# bounds the recovery time of a server, and the driver's memory of small gradients
MAX_UPDATES = 512
# The fewest gradients that a log holds, or there is none: a snapshot reads and writes as much as
# several updates, and must be worth them. Gradients and not updates are counted: under BSP eight
# updates of 16 workers are 128 gradients, for which few logs are large enough.
FEWEST_GRADIENTS = 8


@dataclass(frozen=True, slots=True, eq=False)
class LoggedCall:
    """One call that was sent to the server."""

    message: Message
    inputs: Sequence[Value]
    call: ref[Call]  # alive while anything needs its values


class ServerLog:
    """The log of one server."""

    # vector_bytes: the size of a gradient, and of the weights
    def __init__(self, vector_bytes: float, limit_bytes: float) -> None:
        self.entries: deque[LoggedCall] = deque()  # the oldest first
        self.base: Call | None = None
        # False once the server cannot make snapshots: the state cannot be rebuilt
        self.is_whole = True
        self._vector_bytes, self._limit_bytes = vector_bytes, limit_bytes
        self._bytes, self._updates = 0.0, 0  # of all entries
        self.position = 0  # the number of the next call
        self._pending_snapshots = 0

    @property
    def is_snapshot_due(self) -> bool:
        """Whether the log is long, and no snapshot is under way."""
        is_over = self._bytes >= self._limit_bytes or self._updates >= MAX_UPDATES
        return is_over and self.is_whole and not self._pending_snapshots

    def add(self, message: Message, inputs: Sequence[Value], call: Call) -> None:
        if not self.is_whole:
            return
        self.entries.append(LoggedCall(message, inputs, ref(call)))
        self.position += 1
        if isinstance(message, SnapshotCall):
            self._pending_snapshots += 1
        else:
            self._bytes += len(inputs) * self._vector_bytes
            self._updates += bool(inputs)

    def cut(self, snapshot: Call, position: int) -> None:
        """Make a complete snapshot the base, and drop all entries before its `position`."""
        self._pending_snapshots -= 1
        first = self.position - len(self.entries)
        if position <= first:
            return  # a later snapshot was answered sooner
        self.base = snapshot
        for _ in range(position - first):
            entry = self.entries.popleft()
            if not isinstance(entry.message, SnapshotCall):
                self._bytes -= len(entry.inputs) * self._vector_bytes
                self._updates -= bool(entry.inputs)

    def snapshot_failed(self, *, is_last: bool) -> None:
        """End the wait for a snapshot; `is_last`: the server cannot make any, so the log ends."""
        self._pending_snapshots -= 1
        if is_last:
            self.is_whole, self.base = False, None
            self.entries.clear()


def server_log(
    backend: Backend, server: str, experiment: Experiment, vector_bytes: float
) -> ServerLog | None:
    """Return the log of a server; None if the server cannot be lost, or is not restarted."""
    limit_bytes = log_bytes(experiment, vector_bytes)
    if not limit_bytes or not backend.processes.can_lose(server):
        return None
    return ServerLog(vector_bytes, limit_bytes)


def log_bytes(experiment: Experiment, vector_bytes: float) -> int:
    """Return the limit of the log of a server that can be lost; 0: it has none."""
    cluster = experiment.cluster
    is_worth_it = cluster.server_log_bytes >= FEWEST_GRADIENTS * vector_bytes
    return cluster.server_log_bytes if cluster.restarts.attempts and is_worth_it else 0


def log_notice(experiment: Experiment, vector_bytes: float) -> str:
    """Warn of a server that has no log although the user allows one; "" if it has."""
    cluster = experiment.cluster
    wants_log = cluster.restarts.attempts and cluster.server_log_bytes
    if not wants_log or log_bytes(experiment, vector_bytes):
        return ""
    ends = (
        "the run recovers from its newest checkpoint"
        if experiment.checkpoint is not None
        else "the run fails: set `checkpoint`, from which it would recover, or a larger log"
    )
    return (
        f"The server keeps no log: cluster.server_log_bytes ({cluster.server_log_bytes:,}) holds"
        f" fewer than {FEWEST_GRADIENTS} gradients of {vector_bytes:,.0f} bytes. If the server is"
        f" lost, {ends}."
    )
