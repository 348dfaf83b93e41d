"""A parameter server as the driver sees it: its state, its calls, and the weights to pull."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any
from weakref import ref

from msgspec.structs import replace

from raysync.config import START_DEADLINE_S, Experiment
from raysync.core.decisions import Apply, Push
from raysync.engine.backend import Backend, Call, Failure, Value
from raysync.engine.lines import Lines
from raysync.engine.messages import (
    ApplyCall,
    ForgetCall,
    Message,
    PublishCall,
    SavedCall,
    SnapshotCall,
    StatisticsCall,
)
from raysync.engine.server_log import LoggedCall, ServerLog
from raysync.errors import RunFailed, RunLost
from raysync.training.server.apply_plan import MEAN, ApplyPlan

# A lost process is replaced. Meanwhile workers compute, and updates go on: calls to a server that
# is not up are in its log, and the new process gets them, too. Steps that waited for lost weights
# are reissued on these weights, made again. So no event and no decision changes; only the waits are
# longer.
#
# `cluster.restarts` bounds the attempts in a row, each after a longer back-off; an update beyond
# the repeated ones resets the count. An input that a new process cannot get, such as a gradient
# lost with its node, ends the driver with `RunLost`, and so does the last failed attempt: the run
# then resumes from its newest checkpoint, if any.
#
# A server may be one actor or several shards: only the backend knows.

VERDICT_S = 10.0  # a failed call waits so long for the error of the update that caused it

PUBLISHED = "published"  # name in a checkpoint of published weights that are not the newest


class ServerState(Enum):
    """The states of a server's process, in order; it may be lost in any of them."""

    UP = auto()  # it carries out its calls
    # It is gone or frozen: a call failed, or a deadline was missed. After a back-off another one
    # starts.
    LOST = auto()
    STARTING = auto()  # the new process begins, with the latest snapshot if there is one
    # It repeats the calls since then (`server_log`): the same updates with the same gradients, in
    # order, so the weights are equal bit by bit.
    REPLAYING = auto()


@dataclass(slots=True, eq=False)
class _Watcher:
    """The callback of a call of the server."""

    call: Call
    then: Callable[[Any], None]
    argument: Any


@dataclass(slots=True)
class _Loss:
    """The loss of a process, until its replacement has recovered."""

    at: float
    why: str
    restarted_at: float = 0.0
    # start and repeated calls that are not known to be done, the oldest first
    replay: deque[Call] = field(default_factory=deque)
    updates: int = 0  # repeated ones


class ParameterServer:
    """Sends updates and publications, finds the update that failed, and replaces a lost process.

    Weights are published only when a release or an evaluation needs them. The driver waits for no
    update but the last: a step's answer shows that the update of its weights is done, and all
    before. A step may fail because that update did; this class looks up that error.
    """

    state = ServerState.UP
    version = 0  # updates sent so far
    published: Value = None  # the weights that a release pulls, if published already
    is_finishing = False  # the last update is awaited: see `finish`
    finished_at = 0.0  # when that was done, in seconds since the run began
    _last: Call | None = None
    _attempts = 0  # in a row to replace its process, without a further update
    _proof_version = 0  # the version that shows that the new process is well

    def __init__(
        self,
        backend: Backend,
        actor: str,
        experiment: Experiment,
        *,
        has_replicas: bool = False,
        log: ServerLog | None = None,
    ) -> None:
        """
        Args:
            has_replicas: whether each replica pulls weights of its own.
            log: None: a lost server does not come back.
        """
        self.actor = actor
        self.log = log
        self._backend, self._processes = backend, backend.processes
        self._deadline_s = experiment.cluster.step_deadline_s
        self._call = backend.call if log is None else self._logged
        self._has_replicas = has_replicas
        self._replicas: dict[int, Value] = {}  # replica -> the weights that it pulls
        # calls not known to be done, the oldest first: version, call, pushes of the update
        self._sent: deque[tuple[int, Call, Sequence[Push]]] = deque()
        self._watchers: dict[_Watcher, None] = {}
        self._restarts = experiment.cluster.restarts
        self._loss = _Loss(0.0, "")  # the latest

    def attach(
        self, lines: Lines, issue_again: Callable[[ParameterServer, set[Call]], None]
    ) -> None:
        """Connect to a run.

        `issue_again` is called with the server, and the calls whose lost weights are being made
        again.
        """
        self._lines, self._issue_again = lines, issue_again

    # ---- what it is sent ----

    def apply(
        self, apply: Apply, plan: ApplyPlan | None, vectors: Sequence[Value], is_pulled: bool
    ) -> None:
        """Send an update.

        Args:
            plan: None: nothing is computed.
            vectors: the pushes' gradients, then, for delay compensation, the weights of each push.
            is_pulled: whether a release pulls the new weights before the next update.
        """
        call_of, publish = self._call, apply.publish
        if publish and is_pulled and not self._has_replicas:
            message = ApplyCall(plan, publishes=True)
            call = self.published = call_of(self.actor, message, vectors)
        else:
            published = None if publish else self.weights()  # later releases pull the old weights
            call = call_of(self.actor, ApplyCall(plan), vectors)
            self.published = published
            self._replicas.clear()
        self.version += 1
        self._last = call
        self._sent.append((self.version, call, apply.pushes))
        if self.log is not None and self.log.is_snapshot_due:
            self.snapshot((), ())

    def snapshot(self, names: Sequence[str], values: Sequence[Value]) -> Call:
        """Take a snapshot of the state after all updates so far, with named values to keep."""
        call = self._call(self.actor, SnapshotCall(list(names), self.version), values)
        if self.log is not None:
            self.watch(call, self._snapshot_taken, (call, self.log.position))
        return call

    def weights(self, replica: int = 0) -> Value:
        """Return the weights that a release pulls now."""
        if self._has_replicas:
            if replica not in self._replicas:
                self._replicas[replica] = self._publish(replica)
            return self._replicas[replica]
        if self.published is None:
            self.published = self._publish(0)
        return self.published

    def newest(self) -> Call:
        """Publish the newest weights, for an evaluation."""
        call = self._publish(MEAN)
        if self.published is None and not self._has_replicas:
            self.published = call
        return call

    def resume(self, version: int, published: int) -> None:
        """Resume at a version; `published` is the version of the weights that releases pull."""
        self.version = version
        self.published = None if published == version else self.saved(PUBLISHED)

    def saved(self, name: str) -> Call:
        """Return a named value of the server's checkpoint; only once."""
        return self._call(self.actor, SavedCall(name))

    def statistics(self, worker: str) -> Call:
        """Return a vector with the buffers of the worker's latest applied push."""
        return self._call(self.actor, StatisticsCall(worker))

    def forget(self, worker: str) -> None:
        self._call(self.actor, ForgetCall(worker))

    def _publish(self, replica: int) -> Call:
        call = self._call(self.actor, PublishCall(self.version, replica))
        self._sent.append((self.version, call, ()))
        return call

    def _logged(self, actor: str, message: Message, inputs: Sequence[Value] = ()) -> Call:
        call = self._backend.call(actor, message, inputs)
        assert self.log is not None, "a server without a log"
        self.log.add(message, inputs, call)
        return call

    def _snapshot_taken(self, call_and_position: tuple[Call, int]) -> None:
        call, position = call_and_position
        log, failure = self.log, self._backend.failure(call, 0)
        assert log is not None, "a server without a log"
        if failure is None:
            log.cut(call, position)
        else:
            log.snapshot_failed(is_last=failure.kind == "raised")

    # ---- what it has done ----

    def done(self, version: int) -> None:
        """Note that the server has reached that version."""
        sent = self._sent
        while sent and sent[0][0] <= version:
            sent.popleft()
        if self._attempts and version > self._proof_version and self.state is ServerState.UP:
            self._attempts = 0

    def watch(self, call: Call, then: Callable[[Any], None], argument: Any) -> None:
        """Call `then(argument)` once a call is done or has failed, or was repeated after a loss."""
        if self.log is None:
            self._backend.watch(call, then, argument)
            return
        watcher = _Watcher(call, then, argument)
        self._watchers[watcher] = None
        self._backend.watch(call, self._answered, watcher)

    def _answered(self, watcher: _Watcher) -> None:
        call = watcher.call
        if watcher not in self._watchers or not self._backend.is_done(call):
            return
        failure = self._backend.failure(call, 0)
        if failure is not None and self.lose_if_dead(failure):
            return  # the repeated call is watched
        del self._watchers[watcher]
        watcher.then(watcher.argument)

    def expect(self, call: Call, then: Callable[[Any], None], argument: Any) -> None:
        """Watch a call; raise its error if it fails, or if a late server does not come back."""
        self.watch(call, self._verify, (call, then, argument))
        self._check_call_later(call)

    def _verify(self, what: tuple[Call, Callable[[Any], None], Any]) -> None:
        call, then, argument = what
        answer = call.answer
        if isinstance(answer, Failure):
            # A failed update makes all later calls fail: report the first error.
            try:
                error = self.first_error(self.version, VERDICT_S)
            except TimeoutError:
                error = None
            raise error or self._error(answer)
        then(argument)

    def _check_call_later(self, call: Call) -> None:
        at = self._backend.now + self._deadline_s
        self._processes.schedule_deadline(at, self._check_call, ref(call))

    def _check_call(self, expected: ref[Call]) -> None:
        """Lose the server if an expected call is late."""
        call = expected()
        if call is None or self._backend.is_done(call):
            return
        if self.state is ServerState.UP:
            self.miss_deadline(self._deadline_s)
        self._check_call_later(call)

    def finish(self) -> None:
        """Await the last update: no pull of its weights would show its failure."""
        if self._last is not None:
            self.is_finishing = True
            self.expect(self._last, self._finished, None)

    def _finished(self, _: None) -> None:
        self.is_finishing, self.finished_at = False, self._backend.now

    def first_error(self, version: int, patience_s: float) -> RunFailed | None:
        """Return the error of the first failed update up to that version.

        Raises:
            TimeoutError: an update is still under way.
        """
        for number, call, pushes in self._sent:
            if number > version:
                break
            failure = self._backend.failure(call, patience_s)
            if failure is not None:
                lost = failure.kind == "lost"
                return self._error(failure, f"{_describe(number, pushes)}: " if lost else "")
        return None

    def is_behind(self, version: int) -> bool:
        """Return whether an update up to that version is under way, and none before it failed."""
        try:
            self.first_error(version, 0)
        except TimeoutError:
            return True
        return False

    def _error(self, failure: Failure, what: str = "") -> RunFailed:
        why = f"{self.actor}: {what}{failure.reason}"
        if failure.kind == "raised":
            return RunFailed(why)
        return RunLost(why, "server" if failure.kind == "died" else None)

    @property
    def _has_failed(self) -> bool:
        return any(
            self._backend.is_done(call) and self._backend.failure(call, 0) is not None
            for _, call, _ in self._sent
        )

    # ---- its state ----

    def lose(self, why: str, *, freezes: bool = False) -> bool:
        """Declare the process lost; return whether a replacement starts.

        `freezes`: the process may still be there.
        """
        if self.state is ServerState.LOST:
            return True
        log = self.log
        if log is None or not log.is_whole or self._attempts >= self._restarts.attempts:
            return False
        now = self._backend.now
        if self.state is ServerState.UP:
            self._loss = _Loss(now, why.splitlines()[0].rstrip("."))
        self.state = ServerState.LOST
        wait_s = self._restarts.wait_s(self._attempts)
        self._attempts += 1
        self._backend.schedule(now + wait_s, self._start, freezes)
        return True

    def lose_if_dead(self, failure: Failure) -> bool:
        """Declare a dead process lost; return whether a replacement starts."""
        is_dead = failure.kind == "died" and (
            failure.actor == self.actor or (not failure.actor and self._has_failed)
        )
        return is_dead and self.lose(failure.reason)

    def miss_deadline(self, limit_s: float) -> None:
        """Declare a silent process lost.

        Raises:
            RunLost: no replacement starts.
        """
        late = f"no answer for {limit_s:g} s"
        if not self.lose(late, freezes=True):
            raise RunLost(f"{self.actor}: {late}", "server")

    def _start(self, freezes: bool) -> None:
        """Start a new process, and repeat the logged calls."""
        assert self.state is ServerState.LOST, f"{self.actor} is started as it is {self.state}"
        assert self.log is not None, "a server without a log"
        self.state, loss = ServerState.STARTING, self._loss
        base = [] if self.log.base is None else [self.log.base]
        start = self._processes.restart(self.actor, *base, freezes=freezes)
        loss.replay, loss.updates, repeated = deque([start]), 0, set[Call]()
        for entry in self.log.entries:
            self._repeat(entry, repeated)
        self._proof_version, loss.restarted_at = self.version, self._backend.now
        self._backend.watch(start, self._started, start)
        self._backend.watch(loss.replay[-1], self._replayed, loss.replay[-1])
        self._check_replay_later()
        for watcher in self._watchers:
            if watcher.call in repeated:
                self._backend.watch(watcher.call, self._answered, watcher)
        self._issue_again(self, repeated)

    def _repeat(self, entry: LoggedCall, repeated: set[Call]) -> None:
        """Repeat a call as far as it is needed: unneeded weights are not published again."""
        lost, message = entry.call(), entry.message
        if lost is not None and self._has_succeeded(lost):
            lost = None
        if lost is not None:
            repeated.add(lost)  # the same object, for the new call
        elif isinstance(message, ApplyCall):
            message = replace(message, publishes=False)
        elif not isinstance(message, ForgetCall):
            return
        self._loss.updates += isinstance(message, ApplyCall)
        self._loss.replay.append(self._backend.repeat(lost, self.actor, message, entry.inputs))

    def _has_succeeded(self, call: Call) -> bool:
        return self._backend.is_done(call) and self._backend.failure(call, 0) is None

    def _started(self, start: Call) -> None:
        if self.state is not ServerState.STARTING or self._loss.replay[0] is not start:
            return  # lost again since
        failure = self._backend.failure(start, 0)
        if failure is None:
            self.state = ServerState.REPLAYING
        elif failure.kind != "died" or not self.lose(failure.reason):
            raise self._error(failure, "it cannot be restarted: ")

    def _replayed(self, last: Call) -> None:
        loss, now = self._loss, self._backend.now
        if not self._is_recovering or loss.replay[-1] is not last:
            return  # lost again since
        failures = (self._backend.failure(call, VERDICT_S) for call in loss.replay)
        failure = next(filter(None, failures), None)  # the cause of the others
        if failure is None:
            self.state = ServerState.UP
            loss.replay.clear()
            self._lines.remark(
                f"{self.actor} was lost ({loss.why}) and recovered after {now - loss.at:.3g} s:"
                f" {loss.updates} update{'s were' if loss.updates != 1 else ' was'} replayed in"
                f" {now - loss.restarted_at:.3g} s.",
                lost="server",
                away_s=now - loss.at,
            )
        elif not self.lose_if_dead(failure):
            raise self._error(failure, "it cannot be restarted: ")

    @property
    def _is_recovering(self) -> bool:
        # Ray may report the last repeated call before the start
        return self.state in (ServerState.STARTING, ServerState.REPLAYING)

    def _check_replay_later(self) -> None:
        """Check the replay's progress after the deadline of a start or an update."""
        limit_s = max(self._deadline_s, START_DEADLINE_S)
        at = self._backend.now + limit_s
        oldest_and_limit = ref(self._loss.replay[0]), limit_s
        self._processes.schedule_deadline(at, self._check_replay, oldest_and_limit)

    def _check_replay(self, oldest_and_limit: tuple[ref[Call], float]) -> None:
        """Declare a process lost that has done nothing since the last look."""
        (found, limit_s), replay = oldest_and_limit, self._loss.replay
        is_done, oldest = self._backend.is_done, found()
        if not self._is_recovering or oldest is None or oldest not in replay:
            return
        while self.state is ServerState.REPLAYING and len(replay) > 1 and is_done(replay[0]):
            replay.popleft()
        if replay[0] is oldest and not is_done(oldest):
            self.miss_deadline(limit_s)
        else:
            self._check_replay_later()


def _describe(version: int, pushes: Sequence[Push]) -> str:
    names = ", ".join(f"{worker} (clock {clock})" for worker, clock in pushes)
    return f"update {version} of {names}" if names else f"publication of version {version}"
