"""A parameter server as the driver sees it: the calls that were sent to it, and the weights to
pull.

It may be one actor or several shards: only the backend knows, and a value may come in parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from raysync.core.decisions import Apply, Push
from raysync.engine.backend import Backend, Call, Failure, Value
from raysync.engine.messages import (
    ApplyCall,
    ForgetCall,
    Message,
    PublishCall,
    SavedCall,
    SnapshotCall,
    StatisticsCall,
)
from raysync.engine.server_log import ServerLog
from raysync.errors import RunFailed, RunLost
from raysync.training.server.apply_plan import MEAN, ApplyPlan

VERDICT_S = 10.0
"""The seconds that a failed call waits for the error of the update that made it fail."""

PUBLISHED = "published"
"""The name, in a checkpoint, of published weights that are not those of the latest version."""


class Comeback(Protocol):
    """What brings a lost server back: `server_recovery.ServerRecovery`."""

    @property
    def is_under_way(self) -> bool:
        """Whether the server is gone, or has not made all its updates again."""

    def lost(self, why: str, *, freezes: bool) -> bool:
        """Take in that the server is lost; return whether it comes back.

        Args:
            why: the reason.
            freezes: whether its process may still be there.
        """

    def done(self, version: int) -> None:
        """Take in that the server has come to that version."""


@dataclass(slots=True, eq=False)
class _Watcher:
    """What is called back when a call of the server is done."""

    call: Call
    then: Callable[[Any], None]
    argument: Any


@dataclass(frozen=True, slots=True)
class Replay:
    """The calls that make the state of a lost server again."""

    calls: Sequence[Call]
    """The start of its process, and what is sent to it, in that order."""
    updates: int
    """The number of updates among them."""
    repeated: set[Call]
    """The calls whose values were lost, and are made again: they are the objects that they were."""


class ParameterServer:
    """Sends updates and publications, and finds the update that failed.

    The weights of an update are published only when a release or an evaluation needs them. The
    driver waits for no update: the answer of a step shows that the update whose weights it
    pulled is done, and all updates before that. A step may fail because that update did, whose
    error is then looked up here.

    With a log, its process may be lost: `replay` makes another one what it was."""

    def __init__(
        self,
        backend: Backend,
        actor: str,
        *,
        has_replicas: bool = False,
        log: ServerLog | None = None,
    ) -> None:
        """
        Args:
            backend: has its actor.
            actor: the actor's id, which messages show.
            has_replicas: whether each replica pulls weights of its own.
            log: keeps what is sent to it; None: it does not come back if it is lost.
        """
        self.actor = actor
        self.version = 0
        """The number of updates sent so far."""
        self.last: Call | None = None
        """The latest update."""
        self.log = log
        """What it has been sent since its last snapshot."""
        self.comeback: Comeback | None = None
        """What brings it back; None: nothing does."""
        self._backend = backend
        self._call = backend.call if log is None else self._logged
        self._watchers: dict[_Watcher, None] = {}
        self._has_replicas = has_replicas
        self.published: Value = None
        """The weights that a release pulls, if they are published already."""
        self._replicas: dict[int, Value] = {}
        """Replica -> the weights that it pulls, where each replica has weights of its own."""
        self._sent: deque[tuple[int, Call, Sequence[Push]]] = deque()
        """Calls that are not known to be done, the oldest first: the version, the call, and the
        pushes of the update."""

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
        self.last = call
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

    def done(self, version: int) -> None:
        """Note that the server has come to that version."""
        sent = self._sent
        while sent and sent[0][0] <= version:
            sent.popleft()
        if self.comeback is not None:
            self.comeback.done(version)

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

    @property
    def is_coming_back(self) -> bool:
        """Whether it is lost, or has not made all its updates again."""
        return self.comeback is not None and self.comeback.is_under_way

    def lost(self, why: str, *, freezes: bool = False) -> bool:
        """See `Comeback.lost`."""
        return self.comeback is not None and self.comeback.lost(why, freezes=freezes)

    def lose_by(self, failure: Failure) -> bool:
        """Take the server for lost if a failure shows that it is; return whether it comes back."""
        is_dead = failure.kind == "died" and (
            failure.actor == self.actor or (not failure.actor and self._has_failed)
        )
        return is_dead and self.lost(failure.reason)

    def replay(self, *, freezes: bool) -> Replay:
        """Start a new process, and send it what the lost one had been sent.

        Weights that nobody needs any more are not published again.

        Args:
            freezes: whether the lost process may still be there.

        Raises:
            RunLost: the process cannot be started.
        """
        log, repeated, updates = self.log, set[Call](), 0
        assert log is not None, "a server without a log"
        base = [] if log.base is None else [log.base]
        calls = [self._backend.restart(self.actor, *base, freezes=freezes)]
        for entry in log.entries:
            lost, message = entry.call(), entry.message
            if lost is not None and self._is_there(lost):
                lost = None
            if lost is not None:
                repeated.add(lost)
            elif isinstance(message, ApplyCall):
                message = replace(message, publishes=False)
            elif not isinstance(message, ForgetCall):
                continue
            updates += isinstance(message, ApplyCall)
            calls.append(self._backend.repeat(lost, self.actor, message, entry.inputs))
        return Replay(calls, updates, repeated)

    def watch_again(self, repeated: Collection[Call]) -> None:
        """Watch those calls that have been repeated, and are waited for."""
        for watcher in self._watchers:
            if watcher.call in repeated:
                self._backend.watch(watcher.call, self._answered, watcher)

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
                return self.error(failure, f"{_describe(number, pushes)}: " if lost else "")
        return None

    def error(self, failure: Failure, what: str = "") -> RunFailed:
        """Return the error of a run in which the server failed.

        Args:
            failure: of one of its calls.
            what: begins the reason.
        """
        cls = RunFailed if failure.kind == "raised" else RunLost
        return cls(f"{self.actor}: {what}{failure.reason}")

    def check(self, version: int, late: str) -> bool:
        """Check at a deadline whether the server has reached that version; return whether it has.

        Otherwise it is lost, and comes back.

        Raises:
            RunFailed: the server failed, or has not reached the version; `late` is the reason then.
        """
        try:
            error = self.failure(version, 0)
        except TimeoutError:
            if self.lost(late, freezes=True):
                return False
            error = RunLost(f"{self.actor}: {late}")
        if error is not None:
            raise error
        return True

    def verify(self, call: Call) -> None:
        """Raise the error of a call that has failed, if it has.

        An update that fails makes all later calls fail: the first of them has the error to report.

        Raises:
            RunFailed: with that error.
        """
        answer = call.answer
        if not isinstance(answer, Failure):
            return
        try:
            error = self.failure(self.version, VERDICT_S)
        except TimeoutError:
            error = None
        raise error or self.error(answer)

    def _logged(self, actor: str, message: Message, inputs: Sequence[Value] = ()) -> Call:
        """Send a call, and keep it in the log."""
        call = self._backend.call(actor, message, inputs)
        assert self.log is not None, "a server without a log"
        self.log.add(message, inputs, call)
        return call

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

    @property
    def _has_failed(self) -> bool:
        """Whether a call has failed that was not known to be done."""
        return any(
            self._backend.is_done(call) and self._backend.failure(call, 0) is not None
            for _, call, _ in self._sent
        )

    def _is_there(self, call: Call) -> bool:
        """Say whether a call is done, so that it has its values."""
        return self._backend.is_done(call) and self._backend.failure(call, 0) is None

    def _snapshot_taken(self, call_and_position: tuple[Call, int]) -> None:
        call, position = call_and_position
        log, failure = self.log, self._backend.failure(call, 0)
        assert log is not None, "a server without a log"
        if failure is None:
            log.cut(call, position)
        else:
            log.miss(is_last=failure.kind == "raised")

    def _publish(self, replica: int) -> Call:
        call = self._call(self.actor, PublishCall(self.version, replica))
        self._sent.append((self.version, call, ()))
        return call


def _describe(version: int, pushes: Sequence[Push]) -> str:
    names = ", ".join(f"{worker} (clock {clock})" for worker, clock in pushes)
    return f"update {version} of {names}" if names else f"publication of version {version}"
