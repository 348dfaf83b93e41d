"""A parameter server as the driver sees it: its state, the calls that were sent to it, and the
weights to pull.

    up          it carries out what it is sent
    lost        its process is gone or frozen: a call failed, or a deadline was missed; after a
                back-off another one starts
    starting    the new process begins, with the latest snapshot if there is one
    replaying   it makes again what the lost one was sent since then: the same updates with the same
                gradients, in their order (`server_log`), so the weights are the same bit by bit

Meanwhile workers compute, and updates go on: what is sent to a server that is not up is in its log,
and the new process is sent it, too. Steps that waited for weights that were lost are issued again,
on these very weights. So no event is changed, and no decision; whoever waits for the server waits
longer.

The measure of how often is that of workers (`cluster.restarts`): so many attempts in a row, each
after a longer wait. An update beyond those that are made again sets the count back. What a new
process cannot be given, as a gradient that was lost with its node, ends the driver with `RunLost`,
and so does the last attempt that fails: then the run goes on from its newest checkpoint, if there
is any.

It may be one actor or several shards: only the backend knows, and a value may come in parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

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

VERDICT_S = 10.0
"""The seconds that a failed call waits for the error of the update that made it fail."""

PUBLISHED = "published"
"""The name, in a checkpoint, of published weights that are not those of the latest version."""

State = Enum("State", ["UP", "LOST", "STARTING", "REPLAYING"])
"""The state of a server's process: from any it may be lost, else it goes from one to the next."""


@dataclass(slots=True, eq=False)
class _Watcher:
    """What is called back when a call of the server is done."""

    call: Call
    then: Callable[[Any], None]
    argument: Any


@dataclass(slots=True)
class _Loss:
    """The loss of a process, until the one in its place is what it was."""

    at: float
    why: str
    restarted_at: float = 0.0
    replay: deque[Call] = field(default_factory=deque)
    """The start of the new process and what it is sent again, as far as it is not known to be done,
    the oldest first."""
    updates: int = 0
    """The number of updates that are made again."""


class ParameterServer:
    """Sends updates and publications, finds the update that failed, and replaces a lost process.

    The weights of an update are published only when a release or an evaluation needs them. The
    driver waits for no update but the last: the answer of a step shows that the update whose
    weights it pulled is done, and all updates before that. A step may fail because that update did,
    whose error is then looked up here.
    """

    state = State.UP
    version = 0
    """The number of updates sent so far."""
    published: Value = None
    """The weights that a release pulls, if they are published already."""
    is_finishing = False
    """Whether the last update is waited for; see `finish`."""
    finished_at = 0.0
    """Seconds since the run began: when that was done."""
    _last: Call | None = None
    """The latest update."""
    _attempts = 0
    """The attempts in a row to replace its process, without a further update."""
    _proof = 0
    """The version that shows that the new process is well."""

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
            backend: has its actor.
            actor: the actor's id, which messages show.
            experiment: gives deadlines, and how often and how soon it comes back.
            has_replicas: whether each replica pulls weights of its own.
            log: keeps what is sent to it; None: it does not come back if it is lost.
        """
        self.actor = actor
        self.log = log
        """What it has been sent since its last snapshot."""
        self._backend = backend
        self._deadline_s = experiment.cluster.step_deadline_s
        self._call = backend.call if log is None else self._logged
        self._has_replicas = has_replicas
        self._replicas: dict[int, Value] = {}
        """Replica -> the weights that it pulls, where each replica has weights of its own."""
        self._sent: deque[tuple[int, Call, Sequence[Push]]] = deque()
        """Calls that are not known to be done, the oldest first: the version, the call, and the
        pushes of the update."""
        self._watchers: dict[_Watcher, None] = {}
        self._restarts = experiment.cluster.restarts
        self._loss = _Loss(0.0, "")
        """The latest."""

    def attach(
        self, lines: Lines, issue_again: Callable[[ParameterServer, set[Call]], None]
    ) -> None:
        """Take part in a run.

        Args:
            lines: the journal's.
            issue_again: called with the server, and calls whose weights were lost and are being
                made again.
        """
        self._lines, self._issue_again = lines, issue_again

    # ---- what it is sent ----

    def apply(
        self, apply: Apply, plan: ApplyPlan | None, vectors: Sequence[Value], is_pulled: bool
    ) -> None:
        """Send an update.

        Args:
            apply: the decision; if it is not to be published, later releases still pull the weights
                from before.
            plan: its details; None: nothing is computed.
            vectors: the gradients of its pushes, and behind them, if delays are compensated, the
                weights that each was computed on.
            is_pulled: whether a release pulls the new weights before the next update.
        """
        call_of, publish = self._call, apply.publish
        if publish and is_pulled and not self._has_replicas:
            message = ApplyCall(plan, publishes=True)
            call = self.published = call_of(self.actor, message, vectors)
        else:
            kept = None if publish else self.weights()
            call = call_of(self.actor, ApplyCall(plan), vectors)
            self.published = kept
            self._replicas.clear()
        self.version += 1
        self._last = call
        self._sent.append((self.version, call, apply.pushes))
        if self.log is not None and self.log.is_long:
            self.snapshot((), ())

    def snapshot(self, names: Sequence[str], values: Sequence[Value]) -> Call:
        """Take a snapshot of the state as it is after all updates so far.

        Args:
            names: the names of what it is to keep for the driver.
            values: that.
        """
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
        """Publish the weights as they are after all updates, for an evaluation."""
        call = self._publish(MEAN)
        if self.published is None and not self._has_replicas:
            self.published = call
        return call

    def resume(self, version: int, published: int) -> None:
        """Go on at that version, with the weights that were published at the cut.

        Args:
            version: the number of updates before the cut.
            published: the version of the weights that releases pulled then.
        """
        self.version = version
        self.published = None if published == version else self.saved(PUBLISHED)

    def saved(self, name: str) -> Call:
        """Return what the server has kept in its checkpoint under that name; ask for it once."""
        return self._call(self.actor, SavedCall(name))

    def statistics(self, worker: str) -> Call:
        """Return a vector whose buffers are those of the worker's latest push that was applied."""
        return self._call(self.actor, StatisticsCall(worker))

    def forget(self, worker: str) -> None:
        """Forget a worker that has left: its buffers no longer count."""
        self._call(self.actor, ForgetCall(worker))

    def _publish(self, replica: int) -> Call:
        call = self._call(self.actor, PublishCall(self.version, replica))
        self._sent.append((self.version, call, ()))
        return call

    def _logged(self, actor: str, message: Message, inputs: Sequence[Value] = ()) -> Call:
        """Send a call, and keep it in the log."""
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
            log.miss(is_last=failure.kind == "raised")

    # ---- what it has done ----

    def done(self, version: int) -> None:
        """Take in that the server has come to that version."""
        sent = self._sent
        while sent and sent[0][0] <= version:
            sent.popleft()
        if self._attempts and version > self._proof and self.state is State.UP:
            self._attempts = 0

    def watch(self, call: Call, then: Callable[[Any], None], argument: Any) -> None:
        """Call `then(argument)` once a call of this server is done or has failed; if the server is
        lost, and comes back, once it has done it again.
        """
        if self.log is None:
            self._backend.watch(call, then, argument)
            return
        watcher = _Watcher(call, then, argument)
        self._watchers[watcher] = None
        self._backend.watch(call, self._answered, watcher)

    def _answered(self, watcher: _Watcher) -> None:
        """Call back, unless the call is lost, or is being repeated: then that is watched."""
        call = watcher.call
        if watcher not in self._watchers or not self._backend.is_done(call):
            return
        failure = self._backend.failure(call, 0)
        if failure is not None and self.lose_by(failure):
            return
        del self._watchers[watcher]
        watcher.then(watcher.argument)

    def expect(self, call: Call, then: Callable[[Any], None], argument: Any) -> None:
        """Call `then(argument)` once a call of this server is done, and raise its error if it
        fails, or if the server is late and does not come back.
        """
        self.watch(call, self._verify, (call, then, argument))
        self._await(call)

    def _verify(self, what: tuple[Call, Callable[[Any], None], Any]) -> None:
        """Raise the error of a call that has failed, if it has.

        An update that fails makes all later calls fail: the first of them has the error to report.
        """
        call, then, argument = what
        answer = call.answer
        if isinstance(answer, Failure):
            try:
                error = self.failure(self.version, VERDICT_S)
            except TimeoutError:
                error = None
            raise error or self._error(answer)
        then(argument)

    def _await(self, call: Call) -> None:
        self._backend.schedule(self._backend.now + self._deadline_s, self._look_for, call)

    def _look_for(self, call: Call) -> None:
        """Lose a server that has not done an expected call in time."""
        if self._backend.is_done(call):
            return
        if self.state is State.UP:
            self.miss_deadline(self._deadline_s)
        self._await(call)

    def finish(self) -> None:
        """Wait until the last update is done: nothing pulls its weights, so nothing else would tell
        that it failed, or that the server is gone.
        """
        if self._last is not None:
            self.is_finishing = True
            self.expect(self._last, self._finished, None)

    def _finished(self, _: None) -> None:
        self.is_finishing, self.finished_at = False, self._backend.now

    def failure(self, version: int, patience_s: float) -> RunFailed | None:
        """Return the error of the first update up to that version that failed; None if none did.

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
        """Say whether an update up to that version is under way, and none before it failed."""
        try:
            self.failure(version, 0)
        except TimeoutError:
            return True
        return False

    def _error(self, failure: Failure, what: str = "") -> RunFailed:
        """Return the error of a run that ends with the failure of a call."""
        cls = RunFailed if failure.kind == "raised" else RunLost
        return cls(f"{self.actor}: {what}{failure.reason}")

    @property
    def _has_failed(self) -> bool:
        """Whether a call has failed that was not known to be done."""
        return any(
            self._backend.is_done(call) and self._backend.failure(call, 0) is not None
            for _, call, _ in self._sent
        )

    # ---- its state ----

    def lose(self, why: str, *, freezes: bool = False) -> bool:
        """Take in that its process is lost; return whether another takes its place.

        Args:
            why: the reason.
            freezes: whether the process may still be there.
        """
        if self.state is State.LOST:
            return True
        log = self.log
        if log is None or not log.is_whole or self._attempts >= self._restarts.attempts:
            return False
        now = self._backend.now
        if self.state is State.UP:
            self._loss = _Loss(now, why.splitlines()[0].rstrip("."))
        self.state = State.LOST
        wait_s = self._restarts.wait_s(self._attempts)
        self._attempts += 1
        self._backend.schedule(now + wait_s, self._start, freezes)
        return True

    def lose_by(self, failure: Failure) -> bool:
        """Lose the process if a failure shows that it is dead; return whether another takes its
        place.
        """
        is_dead = failure.kind == "died" and (
            failure.actor == self.actor or (not failure.actor and self._has_failed)
        )
        return is_dead and self.lose(failure.reason)

    def miss_deadline(self, limit_s: float) -> None:
        """Lose the process, which has been silent for so many seconds.

        Raises:
            RunLost: no other takes its place.
        """
        late = f"no answer for {limit_s:g} s"
        if not self.lose(late, freezes=True):
            raise RunLost(f"{self.actor}: {late}")

    def _start(self, freezes: bool) -> None:
        """Start a new process, and send it what the lost one had been sent."""
        assert self.state is State.LOST, f"{self.actor} is started as it is {self.state}"
        assert self.log is not None, "a server without a log"
        self.state, loss = State.STARTING, self._loss
        base = [] if self.log.base is None else [self.log.base]
        start = self._backend.restart(self.actor, *base, freezes=freezes)
        loss.replay, loss.updates, repeated = deque([start]), 0, set[Call]()
        for entry in self.log.entries:
            self._repeat(entry, repeated)
        self._proof, loss.restarted_at = self.version, self._backend.now
        self._backend.watch(start, self._started, start)
        self._backend.watch(loss.replay[-1], self._replayed, loss.replay[-1])
        self._look_later()
        for watcher in self._watchers:
            if watcher.call in repeated:
                self._backend.watch(watcher.call, self._answered, watcher)
        self._issue_again(self, repeated)

    def _repeat(self, entry: LoggedCall, repeated: set[Call]) -> None:
        """Send a call again, as far as its effect is needed: weights that nobody needs any more
        are not published again.
        """
        lost, message = entry.call(), entry.message
        if lost is not None and self._is_there(lost):
            lost = None
        if lost is not None:
            repeated.add(lost)  # it stands for the new one, and is the object that it was
        elif isinstance(message, ApplyCall):
            message = replace(message, publishes=False)
        elif not isinstance(message, ForgetCall):
            return
        self._loss.updates += isinstance(message, ApplyCall)
        self._loss.replay.append(self._backend.repeat(lost, self.actor, message, entry.inputs))

    def _is_there(self, call: Call) -> bool:
        """Say whether a call is done, so that it has its values."""
        return self._backend.is_done(call) and self._backend.failure(call, 0) is None

    def _started(self, start: Call) -> None:
        """Take in that the new process is ready, or has failed to start."""
        if self.state is not State.STARTING or self._loss.replay[0] is not start:
            return  # it has been lost again since
        failure = self._backend.failure(start, 0)
        if failure is None:
            self.state = State.REPLAYING
        elif failure.kind != "died" or not self.lose(failure.reason):
            raise self._error(failure, "it cannot come back: ")

    def _replayed(self, last: Call) -> None:
        """Take in that the last call of a replay is done, or has failed."""
        loss, now = self._loss, self._backend.now
        if not self._is_beginning or loss.replay[-1] is not last:
            return  # it has been lost again since
        failures = (self._backend.failure(call, VERDICT_S) for call in loss.replay)
        failure = next(filter(None, failures), None)  # which the others come from
        if failure is None:
            self.state = State.UP
            loss.replay.clear()
            self._lines.remark(
                f"{self.actor} was lost ({loss.why}) and is back after {now - loss.at:.3g} s:"
                f" {loss.updates} update{'s were' if loss.updates != 1 else ' was'} made again in"
                f" {now - loss.restarted_at:.3g} s."
            )
        elif not self.lose_by(failure):
            raise self._error(failure, "it cannot come back: ")

    @property
    def _is_beginning(self) -> bool:
        """Whether a new process starts or replays."""
        return self.state in (State.STARTING, State.REPLAYING)  # Ray may report in any order

    def _look_later(self) -> None:
        """Look, after the deadline of a start or an update, whether the replay has come further."""
        limit_s = max(self._deadline_s, START_DEADLINE_S)
        at = self._backend.now + limit_s
        self._backend.schedule(at, self._look, (self._loss.replay[0], limit_s))

    def _look(self, oldest_and_limit: tuple[Call, float]) -> None:
        """Lose a process that has done nothing since the last look."""
        (oldest, limit_s), replay = oldest_and_limit, self._loss.replay
        is_done = self._backend.is_done
        if not self._is_beginning or oldest not in replay:
            return
        while self.state is State.REPLAYING and len(replay) > 1 and is_done(replay[0]):
            replay.popleft()
        if replay[0] is oldest and not is_done(oldest):
            self.miss_deadline(limit_s)
        else:
            self._look_later()


def _describe(version: int, pushes: Sequence[Push]) -> str:
    names = ", ".join(f"{worker} (clock {clock})" for worker, clock in pushes)
    return f"update {version} of {names}" if names else f"publication of version {version}"
