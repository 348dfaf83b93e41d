"""Which weights are evaluated, and when: those that the progress marks ask for, one evaluation at a time.

An evaluator that dies or misses its deadline ends nothing, since it only measures. Ray starts its actor anew, it is
reset, and the evaluation that it was at is repeated: the weights' references are still held here. After `TRIES`
failures in a row it is given up, and a remark names the marks that are missing. An error that the user's model or data
raise in an evaluation does end the run, with its message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from raysync.cluster.clock import now_s
from raysync.cluster.pending import Evaluated, Restart, Scoring, reason
from raysync.core.journal import Evaluation, Line, Remark
from raysync.errors import RunFailed

TRIES = 3
"""Failures in a row after which the evaluator is given up."""


class Evaluations:
    """What waits is references: of weights above 100 KiB in the object store, which Ray spills to disk when it is full;
    smaller ones in this process, at most one a mark.
    """

    def __init__(
        self, evaluator: Any, setup: Sequence[Any], marks: Sequence[float], deadline_s: float, start_deadline_s: float,
    ) -> None:
        """
        Args:
            evaluator: handle of its actor, which Ray may restart.
            setup: references to the arguments of its `reset`.
            marks: progress at which to evaluate, rising.
            deadline_s: how long one evaluation may take.
            start_deadline_s: how long the evaluator may take to start anew.
        """
        self._evaluator, self._setup = evaluator, setup
        self._marks = list(reversed(marks))
        self._deadline_s, self._start_deadline_s = deadline_s, start_deadline_s
        self._waiting: deque[Evaluated] = deque()
        self._under_way = False
        self._must_restart = False
        self._failures = 0
        """In a row."""

    def take_marks(self, progress: float) -> tuple[float, ...]:
        """The marks that have been passed since the last call."""
        taken = []
        while self._marks and self._marks[-1] <= progress:
            taken.append(self._marks.pop())
        return tuple(taken)

    def add(self, update: Evaluated) -> None:
        """Its weights are to be evaluated once they are published."""
        if self._failures < TRIES:
            self._waiting.append(update)

    def next(self) -> dict[Any, Scoring | Restart]:
        """Begin what comes next if nothing is under way: reference -> what it is.

        That is an evaluation of weights that are published, or the evaluator's restart.
        """
        if self._under_way or not self._waiting or self._waiting[0].at is None:
            return {}
        self._under_way = True
        if self._must_restart:
            self._must_restart = False
            ready = self._evaluator.reset.options(max_task_retries=-1).remote(*self._setup)  # waits for the new process
            return {ready: Restart(now_s() + self._start_deadline_s)}
        update = self._waiting[0]
        assert update.weights is not None, "an evaluation of weights that were not published"
        reference = self._evaluator.evaluate.remote(1 in update.marks, *update.weights)
        return {reference: Scoring(update, now_s() + self._deadline_s)}

    def arrived(self, reference: Any, pending: Scoring | Restart, at: float) -> list[Line]:
        """Take in what has become of an evaluation, or of a restart; returns what is to be told.

        Raises:
            RunFailed: the user's model or data raised an error.
        """
        try:
            answer = ray.get(reference)
        except RayTaskError as error:
            raise RunFailed(f"evaluator: {reason(error)}") from error
        except RayError as error:
            return self._failed(reason(error), at)
        self._under_way = False
        if isinstance(pending, Restart):
            return []
        self._waiting.popleft()
        self._failures = 0
        accuracy, loss = answer
        update = pending.update
        assert update.at is not None, "evaluated before it was published"
        return [Evaluation(mark=mark, progress=update.progress, version=update.version, at=update.at,
                           accuracy=accuracy, loss=loss) for mark in update.marks]

    def late(self, pending: Scoring | Restart, at: float) -> list[Line]:
        """A deadline has passed: the process is frozen, or cannot start; returns what is to be told."""
        ray.kill(self._evaluator, no_restart=False)
        if isinstance(pending, Restart):
            return self._failed(f"it was not ready after {self._start_deadline_s:g} s", at)
        return self._failed(f"no answer for {self._deadline_s:g} s", at)

    def _failed(self, why: str, at: float) -> list[Line]:
        self._failures += 1
        self._under_way, self._must_restart = False, True
        if self._failures < TRIES:
            return [Remark(at, f"The evaluator failed ({why}); it is started anew, and its evaluation is repeated.")]
        missing = [*(mark for update in self._waiting for mark in update.marks), *reversed(self._marks)]
        self._waiting.clear()
        self._marks.clear()
        shown = ", ".join(f"{mark:g}" for mark in missing)
        return [Remark(at, f"The evaluator failed {TRIES} times in a row ({why}) and is given up: the run goes on "
                           f"without the evaluations at progress {shown}.")]
