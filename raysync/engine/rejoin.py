"""Workers that come back: each is the next life of the slot of one that is gone.

    planned      an experiment's crash with `rejoin_after_s`: it starts at once, and joins when due
    restarted    in the place of one that was lost (`cluster.restarts`): it starts after a back-off,
                 and joins as soon as it is ready

Each attempt to start a worker is a life of its own, also one that fails, so no two of them are ever
taken for each other. What counts as a failed attempt is a worker that does not start, or is lost
before its first push has arrived. Not so one whose node goes while it starts: it starts elsewhere,
and if there is no room for it, waits as long as it takes, until a node is added or becomes free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from raysync.config import Restarts
from raysync.core.ids import WorkerId, worker_id
from raysync.core.journal import NO_REPORT, Report
from raysync.engine.backend import Backend, Call, Failure

LOOK_AGAIN_S = 1.0
"""The seconds between two looks for room."""


@dataclass(slots=True, eq=False)
class Comeback:
    """A worker that comes in the place of one that is gone."""

    worker: str
    gone_at: float
    """Seconds since the run began: when the slot became empty."""
    attempt: int
    """The number of this attempt in a row; 0: its comeback was planned."""
    due_at: float
    """Seconds since the run began: it joins no sooner, however soon it is ready."""
    call: Call | None = None
    """Done when the worker is ready; None while its start is still to come."""
    is_told: bool = False
    """Whether the journal says already that it waits for room."""


class Comebacks:
    """The workers that are on their way into a run."""

    def __init__(
        self,
        backend: Backend,
        restarts: Restarts,
        deadline_s: float,
        join: Callable[[str], None],
        not_started: Callable[[str, str, float | None], None],
        no_room: Callable[[str], None],
    ) -> None:
        """
        Args:
            backend: starts their actors.
            restarts: how often and how soon.
            deadline_s: how long an actor may take to start.
            join: called with a worker that is ready, when it is due.
            not_started: called with a worker that did not start, the reason, and the seconds until
                the next attempt; None: there is none.
            no_room: called, once, with a worker that has to wait for room.
        """
        self._backend, self._restarts, self._deadline_s = backend, restarts, deadline_s
        self._join, self._not_started, self._no_room = join, not_started, no_room
        self._coming: dict[str, Comeback] = {}
        self.unproven: dict[str, int] = {}
        """Member that was restarted, and has not pushed yet -> the attempts in a row so far."""

    def __len__(self) -> int:
        """Return how many workers are on their way."""
        return len(self._coming)

    def plan(self, gone: str, after_s: float) -> None:
        """Start the next life of a worker's slot at once, since a process takes seconds to start;
        it joins after so many seconds.
        """
        now = self._backend.now
        self._start(self._expect(Comeback(next_life_of(gone), now, 0, now + after_s)))

    def restart(self, lost: str) -> float | None:
        """Start the next life of a lost worker's slot after a back-off.

        Returns:
            The seconds until then; None: there have been enough attempts.
        """
        now = self._backend.now
        return self._retry(Comeback(lost, now, self.unproven.get(lost, 0), now))

    def joined(self, worker: str) -> Report:
        """Note that the worker has joined; return what the journal says of it."""
        comeback = self._coming.pop(worker, None)
        if comeback is None or not comeback.attempt:
            return NO_REPORT
        self.unproven[worker] = comeback.attempt
        return Report(away_s=self._backend.now - comeback.gone_at)

    def cancel(self) -> None:
        """Expect none of them any more: the run is over."""
        self._coming.clear()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint needs of them, JSON-native."""
        return {
            "coming": [
                [each.worker, each.gone_at, each.attempt, each.due_at]
                for each in self._coming.values()
            ],
            "unproven": self.unproven,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned. The processes of a resumed run are new, so all are
        ready: a worker whose comeback was planned joins when it is due, any other at once.
        """
        self.unproven.update(state["unproven"])
        now = self._backend.now
        for worker, gone_at, attempt, due_at in state["coming"]:
            self._expect(Comeback(worker, gone_at, attempt, due_at))
            self._backend.schedule(max(due_at, now), self._join, worker)

    def next_life(self, slot: str) -> str | None:
        """Return the worker of that slot that is on its way; None if there is none."""
        return next((each for each in self._coming if WorkerId(each).slot == slot), None)

    def _retry(self, failed: Comeback) -> float | None:
        if failed.attempt >= self._restarts.attempts:
            return None
        wait_s = self._restarts.wait_s(failed.attempt)
        following = replace(
            failed,
            worker=next_life_of(failed.worker),
            attempt=failed.attempt + 1,
            call=None,
            is_told=False,
        )
        self._backend.schedule(self._backend.now + wait_s, self._start, self._expect(following))
        return wait_s

    def _expect(self, comeback: Comeback) -> Comeback:
        self._coming[comeback.worker] = comeback
        return comeback

    def _start(self, comeback: Comeback) -> None:
        """Start a worker as soon as there is room for it."""
        if self._coming.get(comeback.worker) is not comeback:
            return
        if self._backend.room(comeback.worker) != "free":
            self._tell_of_room(comeback)
            self._backend.schedule(self._backend.now + LOOK_AGAIN_S, self._start, comeback)
            return
        comeback.call = self._backend.spawn(comeback.worker)
        self._backend.watch(comeback.call, self._started, comeback)
        self._await_start(comeback)

    def _await_start(self, comeback: Comeback) -> None:
        self._backend.schedule(self._backend.now + self._deadline_s, self._miss_deadline, comeback)

    def _tell_of_room(self, comeback: Comeback) -> bool:
        """Return whether the worker waits for room, and tell it the first time."""
        if self._backend.room(comeback.worker) != "none":
            return False
        if not comeback.is_told:
            comeback.is_told = True
            self._no_room(comeback.worker)
        return True

    def _started(self, comeback: Comeback) -> None:
        if self._coming.get(comeback.worker) is not comeback:
            return
        assert comeback.call is not None, "ready before its start"
        answer = comeback.call.answer
        if isinstance(answer, Failure) and answer.with_node:
            self._backend.kill(comeback.worker)
            del self._coming[comeback.worker]
            elsewhere = replace(comeback, worker=next_life_of(comeback.worker), call=None)
            self._start(self._expect(elsewhere))
        elif isinstance(answer, Failure):
            self._fail(comeback, answer.reason)
        else:
            at = max(comeback.due_at, self._backend.now)
            self._backend.schedule(at, self._join, comeback.worker)

    def _miss_deadline(self, comeback: Comeback) -> None:
        is_awaited = self._coming.get(comeback.worker) is comeback
        if not is_awaited or self._backend.is_done(comeback.call):
            return
        if self._tell_of_room(comeback):  # its node went while it started: it does so elsewhere
            self._await_start(comeback)
        else:
            self._fail(comeback, f"not ready after {self._deadline_s:g} s")

    def _fail(self, comeback: Comeback, why: str) -> None:
        self._backend.kill(comeback.worker)
        del self._coming[comeback.worker]
        self._not_started(comeback.worker, why, self._retry(comeback))


def next_life_of(worker: str) -> str:
    """Return the id of the worker that comes in the place of that one."""
    former = WorkerId(worker)
    return str(worker_id(former.slot, former.life + 1))
