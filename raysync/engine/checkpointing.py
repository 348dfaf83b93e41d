"""When a run takes a checkpoint, and how: a consistent cut, without waiting for anything.

    cut        between two events: the driver's state is written down, and the journal gets a line
    snapshot   a call to every server, behind all updates sent so far: so it has the very version
    done       once all have answered, also the workers that keep something from push to push, each
               behind the iteration that it is at; meanwhile workers compute, and updates go on

Gradients and weights that the driver still needs (buffered pushes, pending evaluations, the model
to keep) are inputs of the snapshots, under names: each server writes its parts of them down. So no
tensor comes here, but the contents of the servers' files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from raysync.config import Experiment
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Checkpointed
from raysync.engine.backend import Backend, Call, Failure, Value
from raysync.engine.lines import Lines
from raysync.engine.parameter_server import ParameterServer

Snapshot = tuple[Mapping[str, Any], Mapping[str, Sequence[bytes]]]
"""The state and the files of a checkpoint."""


@dataclass(slots=True)
class Cut:
    """What is to be written down at one moment of a run."""

    state: dict[str, Any] = field(default_factory=dict)
    """The driver's state, JSON-native."""
    values: dict[str, list[tuple[str, Value]]] = field(default_factory=dict)
    """Id of a server -> name and value of what it is to keep for the driver."""
    workers: dict[str, Call] = field(default_factory=dict)
    """Worker -> the call that answers with the file of what it keeps."""

    def keep(self, name: str, server: ParameterServer, value: Value) -> None:
        """Keep a gradient for a server, or weights of its own, under a name; see
        `ParameterServer.saved`.
        """
        self.values.setdefault(server.actor, []).append((name, value))


@dataclass(slots=True, eq=False)
class _Pending:
    """A checkpoint whose actors have not answered yet."""

    number: int
    at: float
    state: Mapping[str, Any]
    servers: Mapping[str, Call]
    workers: Mapping[str, Call]
    missing: int


class Checkpointer:
    """The checkpoints of a run."""

    def __init__(
        self,
        backend: Backend,
        servers: Sequence[ParameterServer],
        experiment: Experiment,
        lines: Lines,
        cut: Callable[[], Cut | None],
        former: Checkpoint | None = None,
    ) -> None:
        """
        Args:
            backend: has the servers.
            servers: of the run.
            experiment: says how often.
            lines: the journal's.
            cut: writes the driver's state down; None: the run is over, or the driver asks again.
            former: the checkpoint that the run goes on from.
        """
        self.done: list[Checkpoint] = []
        """The checkpoints that are to be reported."""
        self.number = 0 if former is None else former.number
        """The number of the latest checkpoint of which there is a line in the journal."""
        self.exists = former is not None
        """Whether the run can be resumed: a checkpoint is complete."""
        self.snapshot: Callable[[], Snapshot | None] | None = None
        """Returns the whole world at once, where it is in this process; None: not now."""
        self._backend, self._servers = backend, servers
        self._lines, self._cut = lines, cut
        self._is_requested, self._is_last_taken = False, False
        self._pending: _Pending | None = None
        setting = experiment.checkpoint
        self._every_s = None if setting is None else setting.every_s
        self._every_progress = None if setting is None else setting.every_progress
        self._deadline_s = experiment.cluster.step_deadline_s
        self.next_progress = inf
        """The progress of the run at which the next checkpoint is due."""

    def begin(self, progress: float) -> None:
        """Begin to count, at that progress of the run."""
        self._expect(progress)
        if self._every_s is not None:
            self._schedule()

    def reached(self, progress: float) -> None:
        """Take the checkpoint that is due at that progress of the run, once the event in hand is
        over.
        """
        self._expect(progress)
        self.request()

    def request(self) -> None:
        """Take a checkpoint once the event in hand is over."""
        self._is_requested = True
        self._backend.schedule(self._backend.now, self._requested, None)

    @property
    def is_pending(self) -> bool:
        """Whether a checkpoint has been requested that is not complete, and not given up."""
        return self._is_requested or self._pending is not None

    def _expect(self, progress: float) -> None:
        every = self._every_progress
        if every is not None:
            self.next_progress = every * (int(progress / every + 1e-9) + 1)

    def _schedule(self) -> None:
        assert self._every_s is not None, "scheduled without an interval"
        self._backend.schedule(self._backend.now + self._every_s, self._come_due, None)

    def _come_due(self, _: None) -> None:
        self.take()
        self._schedule()

    def _requested(self, _: None) -> None:
        self._is_requested = False
        self.take()

    def take(self) -> None:
        """Take a checkpoint between two events, unless the one before it is still being written
        down.
        """
        if self._pending is not None:
            return
        if self.snapshot is None:
            self._take_cut()
        elif (taken := self.snapshot()) is not None:
            self.number += 1
            self._lines.append(Checkpointed(self._backend.now, self.number))
            self.exists = True
            self.done.append(Checkpoint(self.number, self._backend.now, *taken))

    def take_last(self) -> None:
        """Take a checkpoint if this is the first call: the run is to be stopped."""
        if not self._is_last_taken:
            self._is_last_taken = True
            self.take()

    def _take_cut(self) -> None:
        cut = self._cut()
        if cut is None:
            return
        at = self._backend.now
        self.number += 1
        self._lines.append(Checkpointed(at, self.number))
        calls = (
            {server.actor: self._snapshot(server, cut) for server in self._servers}
            if self._backend.computes
            else {}
        )
        pending = self._pending = _Pending(
            number=self.number,
            at=at,
            state=cut.state,
            servers=calls,
            workers=cut.workers,
            missing=len(calls) + len(cut.workers),
        )
        for server in self._servers if calls else ():
            server.watch(calls[server.actor], self._answered, pending)
        for call in cut.workers.values():
            self._backend.watch(call, self._answered, pending)
        if not calls:
            self._complete(pending, {}, {})
        else:
            self._backend.schedule(at + self._deadline_s, self._miss_deadline, pending)

    def _snapshot(self, server: ParameterServer, cut: Cut) -> Call:
        kept = cut.values.get(server.actor, [])
        return server.snapshot([name for name, _ in kept], [value for _, value in kept])

    def _answered(self, pending: _Pending) -> None:
        pending.missing -= 1
        if pending.missing or self._pending is not pending:
            return
        files, kept = (
            {actor: call.answer for actor, call in calls.items()}
            for calls in (pending.servers, pending.workers)
        )
        answers = [*files.values(), *kept.values()]
        failure = next((each for each in answers if isinstance(each, Failure)), None)
        if failure is None:
            self._complete(pending, files, {worker: file for worker, [file] in kept.items()})
        else:
            self._give_up(pending, failure.reason)

    def _complete(
        self, pending: _Pending, files: Mapping[str, Sequence[bytes]], kept: Mapping[str, bytes]
    ) -> None:
        self._pending = None
        self.exists = True
        number, at, state = pending.number, pending.at, pending.state
        self.done.append(Checkpoint(number, at, state, servers=files, kept=kept))

    def _miss_deadline(self, pending: _Pending) -> None:
        if self._pending is pending:
            self._give_up(pending, f"no answer for {self._deadline_s:g} s")

    def _give_up(self, pending: _Pending, why: str) -> None:
        """Go on without a checkpoint: if a server is the cause, the run learns of it elsewhere."""
        self._pending = None
        self._lines.remark(
            f"Checkpoint {pending.number} could not be taken ({why}); the run goes on."
        )
