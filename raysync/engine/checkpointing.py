"""The checkpoints of a run: consistent snapshots, without waiting for anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any
from weakref import ref

from raysync.config import Experiment
from raysync.core.checkpoint import Checkpoint
from raysync.core.journal import Checkpointed
from raysync.engine.backend import Backend, Call, Failure, Value
from raysync.engine.lines import Lines
from raysync.engine.parameter_server import ParameterServer

# cut        between two events: the driver's state is written down, and the journal gets a line
# snapshot   a call to every server behind all updates sent so far, so it has the very version
# done       all have answered, also the workers with a state of their own, each behind its running
#            iteration; meanwhile workers compute, and updates go on. Of a worker that is silent or
#            lost it has the state of the checkpoint before, and the journal says so
#
# Gradients and weights that the driver still needs (buffered pushes, pending evaluations, models to
# save) are named inputs of the snapshots: each server writes its parts into its files, so no tensor
# reaches the driver.

# The state and the files of a checkpoint.
Snapshot = tuple[Mapping[str, Any], Mapping[str, Sequence[bytes]]]


@dataclass(slots=True)
class ConsistentCut:
    """The state of a run at one moment, with the values that servers and workers write down."""

    state: dict[str, Any] = field(default_factory=dict)  # the driver's, JSON-native
    # server id -> names and values to keep
    values: dict[str, list[tuple[str, Value]]] = field(default_factory=dict)
    # worker -> the call that answers with its file
    workers: dict[str, Call] = field(default_factory=dict)

    def keep(self, name: str, server: ParameterServer, value: Value) -> None:
        """Store a gradient, or a server's weights, under a name, for `ParameterServer.saved`."""
        self.values.setdefault(server.actor, []).append((name, value))


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Pending:
    """A checkpoint that awaits answers."""

    number: int
    at: float
    state: Mapping[str, Any]
    servers: Mapping[str, Call]
    workers: Mapping[str, Call]
    missing: set[str]  # the servers and workers that have not answered


class Checkpointer:
    def __init__(
        self,
        backend: Backend,
        servers: Sequence[ParameterServer],
        experiment: Experiment,
        lines: Lines,
        cut: Callable[[], ConsistentCut | None],
        former: Checkpoint | None = None,
    ) -> None:
        """
        Args:
            cut: writes the driver's state down; None: the run is over, or the driver requests
                again.
            former: the checkpoint from which the run resumed.
        """
        self.done: list[Checkpoint] = []  # to be reported
        # the number of the latest `Checkpointed` in the journal
        self.number = 0 if former is None else former.number
        self.exists = former is not None  # a checkpoint is complete, so the run can be resumed
        # returns the whole state of an engine in this process; None: not now
        self.snapshot: Callable[[], Snapshot | None] | None = None
        self._backend, self._servers = backend, servers
        self._processes = backend.processes
        self._lines, self._write_cut = lines, cut
        self._is_requested, self._is_last_taken = False, False
        self._pending: _Pending | None = None
        # worker -> its file in the latest checkpoint that has one
        self._worker_files = {} if former is None else dict(former.worker_files)
        setting = experiment.checkpoint
        self._every_s = None if setting is None else setting.every_s
        self._every_progress = None if setting is None else setting.every_progress
        self._deadline_s = experiment.cluster.step_deadline_s
        self.next_progress = inf

    def take(self) -> None:
        """Take a checkpoint between two events, unless the one before is still pending."""
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
        """Take a checkpoint on the first call: the run will stop."""
        if not self._is_last_taken:
            self._is_last_taken = True
            self.take()

    def _take_cut(self) -> None:
        cut = self._write_cut()
        if cut is None:
            return
        at = self._backend.now
        self.number += 1
        self._lines.append(Checkpointed(at, self.number))
        calls = (
            {server.actor: self._call_snapshot(server, cut) for server in self._servers}
            if self._backend.computes
            else {}
        )
        pending = self._pending = _Pending(
            number=self.number,
            at=at,
            state=cut.state,
            servers=calls,
            workers=cut.workers,
            missing={*calls, *cut.workers},
        )
        for server in self._servers if calls else ():
            server.watch(calls[server.actor], self._answered, (pending, server.actor))
        for worker, call in cut.workers.items():
            self._backend.watch(call, self._answered, (pending, worker))
        if not calls:
            self._complete(pending, {}, {})
        else:
            deadline = at + self._deadline_s, self._miss_deadline, ref(pending)
            self._processes.schedule_deadline(*deadline)

    def _call_snapshot(self, server: ParameterServer, cut: ConsistentCut) -> Call:
        inputs = cut.values.get(server.actor, [])
        return server.snapshot([name for name, _ in inputs], [value for _, value in inputs])

    def _answered(self, answered: tuple[_Pending, str]) -> None:
        pending, actor = answered
        pending.missing.discard(actor)
        if not pending.missing and self._pending is pending:
            self._gather(pending)

    def _gather(self, pending: _Pending) -> None:
        """Complete a checkpoint whose servers have all answered."""
        files = {actor: call.answer for actor, call in pending.servers.items()}
        failed = [answer for answer in files.values() if isinstance(answer, Failure)]
        if failed:
            self._give_up(pending, failed[0].reason)
            return
        silent = {
            worker: f"no answer for {self._deadline_s:g} s"
            for worker in pending.workers
            if worker in pending.missing
        }
        states = {w: file for w, file in self._worker_files.items() if w in pending.workers}
        for worker, call in pending.workers.items():
            if worker in silent:
                continue
            answer = call.answer
            if isinstance(answer, Failure):
                silent[worker] = answer.reason
            else:
                [states[worker]] = answer
        for worker, why in silent.items():
            state = "an earlier state" if worker in states else "no state"
            self._lines.remark(f"Checkpoint {pending.number} has {state} of {worker} ({why}).")
        self._worker_files = states
        self._complete(pending, files, states)

    def _complete(
        self,
        pending: _Pending,
        files: Mapping[str, Sequence[bytes]],
        worker_files: Mapping[str, bytes],
    ) -> None:
        self._pending = None
        self.exists = True
        number, at, state = pending.number, pending.at, pending.state
        self.done.append(Checkpoint(number, at, state, servers=files, worker_files=worker_files))

    def _miss_deadline(self, awaited: ref[_Pending]) -> None:
        pending = awaited()
        if pending is None or self._pending is not pending:
            return
        if pending.missing & pending.servers.keys():
            self._give_up(pending, f"no answer for {self._deadline_s:g} s")
        else:
            self._gather(pending)

    def _give_up(self, pending: _Pending, why: str) -> None:
        self._pending = None  # a server's own failure reaches the run elsewhere
        self._lines.remark(
            f"Checkpoint {pending.number} could not be taken ({why}); the run continues."
        )

    # ---- when it is due ----

    def begin(self, progress: float) -> None:
        """Schedule the first checkpoints after that progress."""
        self._set_next_progress(progress)
        if self._every_s is not None:
            self._schedule_next()

    def reached(self, progress: float) -> None:
        """Take the checkpoint that is due at that progress, after the event in hand."""
        self._set_next_progress(progress)
        self.request()

    def request(self) -> None:
        """Take a checkpoint after the event in hand."""
        self._is_requested = True
        self._backend.schedule(self._backend.now, self._take_requested, None)

    @property
    def is_pending(self) -> bool:
        """Whether a requested checkpoint is neither complete nor given up."""
        return self._is_requested or self._pending is not None

    def _set_next_progress(self, progress: float) -> None:
        every = self._every_progress
        if every is not None:
            # a multiple that rounding left just below its value is reached, too
            self.next_progress = every * (int(progress / every + 1e-9) + 1)

    def _schedule_next(self) -> None:
        assert self._every_s is not None, "scheduled without an interval"
        self._backend.schedule(self._backend.now + self._every_s, self._take_scheduled, None)

    def _take_scheduled(self, _: None) -> None:
        self.take()
        self._schedule_next()

    def _take_requested(self, _: None) -> None:
        self._is_requested = False
        self.take()
