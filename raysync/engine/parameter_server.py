"""A parameter server as the driver sees it: the calls that were sent to it, and the weights to
pull.

It may be one actor or several shards: only the backend knows, and a value may come in parts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from raysync.core.decisions import Push
from raysync.engine.backend import Backend, Call, Failure, Value
from raysync.errors import RunFailed, RunLost
from raysync.training.apply_plan import MEAN

VERDICT_S = 10.0
"""The seconds that a failed call waits for the error of the update that made it fail."""

PUBLISHED = "published"
"""The name, in a checkpoint, of published weights that are not those of the latest version."""


class ParameterServer:
    """Sends updates and publications, and finds the update that failed.

    The weights of an update are published only when a release or an evaluation needs them. The
    driver waits for no update: the answer of a step shows that the update whose weights it
    pulled is done, and all updates before that. A step may fail because that update did, whose
    error is then looked up here."""

    def __init__(self, backend: Backend, actor: str, *, has_replicas: bool = False) -> None:
        """
        Args:
            backend: has its actor.
            actor: the actor's id, which messages show.
            has_replicas: whether each replica pulls weights of its own.
        """
        self.actor = actor
        self.version = 0
        """The number of updates sent so far."""
        self.last: Call | None = None
        """The latest update."""
        self._backend = backend
        self._has_replicas = has_replicas
        self.published: Value = None
        """The weights that a release pulls, if they are published already."""
        self._replicas: dict[int, Value] = {}
        """Replica -> the weights that it pulls, where each replica has weights of its own."""
        self._sent: deque[tuple[int, Call, Sequence[Push]]] = deque()
        """Calls that are not known to be done, the oldest first: the version, the call, and the
        pushes of the update."""

    def apply(
        self,
        fields: list[Any],
        pushes: Sequence[Push],
        vectors: Sequence[Value],
        *,
        publish: bool,
        is_pulled: bool,
    ) -> None:
        """Send an update.

        Args:
            fields: the fields of an `ApplyPlan`.
            pushes: the pushes that it takes.
            vectors: their gradients, and behind them, if delays are compensated, the weights that
                each was computed on.
            publish: if False, later releases still pull the weights from before this update.
            is_pulled: whether a release pulls the new weights before the next update.
        """
        if publish and is_pulled and not self._has_replicas:
            call = self.published = self._backend.call(
                self.actor, "apply_and_publish", fields, *vectors
            )
        else:
            kept = None if publish else self.weights()
            call = self._backend.call(self.actor, "apply", fields, *vectors)
            self.published = kept
            self._replicas.clear()
        self.version += 1
        self.last = call
        self._sent.append((self.version, call, pushes))

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
        return self._backend.call(self.actor, "saved", [name])

    def statistics(self, worker: str) -> Call:
        """Return a vector whose buffers are those of the worker's latest push that was applied."""
        return self._backend.call(self.actor, "statistics", [worker])

    def forget(self, worker: str) -> None:
        """Forget a worker that has left: its buffers no longer count."""
        self._backend.call(self.actor, "forget", [worker])

    def done(self, version: int) -> None:
        """Note that the server has come to that version."""
        sent = self._sent
        while sent and sent[0][0] <= version:
            sent.popleft()

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

    def check(self, version: int, late: str) -> None:
        """Check at a deadline whether the server has reached that version.

        Raises:
            RunFailed: the server failed, or has not reached the version; `late` is the reason then.
        """
        try:
            error = self.failure(version, 0)
        except TimeoutError:
            error = RunLost(f"{self.actor}: {late}")
        if error is not None:
            raise error

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

    def _publish(self, replica: int) -> Call:
        call = self._backend.call(self.actor, "publish", [self.version, replica])
        self._sent.append((self.version, call, ()))
        return call


def _describe(version: int, pushes: Sequence[Push]) -> str:
    names = ", ".join(f"{worker} (clock {clock})" for worker, clock in pushes)
    return f"update {version} of {names}" if names else f"publication of version {version}"
