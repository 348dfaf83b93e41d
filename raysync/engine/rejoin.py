"""Workers that come back: each starts in the place of one that crashed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raysync.core.ids import WorkerId, worker_id
from raysync.engine.backend import Backend, Call, Failure


@dataclass(slots=True, eq=False)
class Comeback:
    """A worker that starts in the place of one that crashed."""

    worker: str
    call: Call
    """Done when the worker is ready."""
    due_at: float
    """Seconds since the run began: it joins no sooner, however soon it is ready."""


class Comebacks:
    """The workers that are on their way into a run."""

    def __init__(
        self,
        backend: Backend,
        deadline_s: float,
        join: Callable[[str], None],
        give_up: Callable[[str, str], None],
    ) -> None:
        """
        Args:
            backend: starts their actors.
            deadline_s: how long an actor may take to start.
            join: called with a worker that is ready, when it is due.
            give_up: called with a worker that did not start, and the reason.
        """
        self._backend, self._deadline_s = backend, deadline_s
        self._join, self._give_up = join, give_up
        self._coming: dict[str, Comeback] = {}

    def __bool__(self) -> bool:
        """Say whether a worker is on its way."""
        return bool(self._coming)

    def start(self, gone: str, after_s: float) -> None:
        """Start the next life of a worker's slot at once, since a process takes seconds to start;
        it joins after so many seconds.
        """
        former = WorkerId(gone)
        worker = str(worker_id(former.slot, former.life + 1))
        now = self._backend.now
        comeback = Comeback(worker, self._backend.spawn(worker), now + after_s)
        self._coming[worker] = comeback
        self._backend.watch(comeback.call, self._started, comeback)
        self._backend.schedule(now + self._deadline_s, self._miss_deadline, comeback)

    def joined(self, worker: str) -> None:
        """Note that the worker has joined."""
        self._coming.pop(worker, None)

    def cancel(self) -> None:
        """Expect none of them any more: the run is over."""
        self._coming.clear()

    def _started(self, comeback: Comeback) -> None:
        if self._coming.get(comeback.worker) is not comeback:
            return
        answer = comeback.call.answer
        if isinstance(answer, Failure):
            self._fail(comeback, answer.reason)
        else:
            at = max(comeback.due_at, self._backend.now)
            self._backend.schedule(at, self._join, comeback.worker)

    def _miss_deadline(self, comeback: Comeback) -> None:
        is_awaited = self._coming.get(comeback.worker) is comeback
        if is_awaited and not self._backend.is_done(comeback.call):
            self._fail(comeback, f"not ready after {self._deadline_s:g} s")

    def _fail(self, comeback: Comeback, why: str) -> None:
        self._backend.kill(comeback.worker)
        del self._coming[comeback.worker]
        self._give_up(comeback.worker, why)
