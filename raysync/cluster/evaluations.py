"""Which weights are evaluated, and when: those that the progress marks ask for, one evaluation at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from raysync.cluster.clock import now_s
from raysync.cluster.pending import Scoring, Update


class Evaluations:
    """What waits is references: of weights above 100 KiB in the object store, which Ray spills to disk when it is full;
    smaller ones in this process, at most one a mark.
    """

    def __init__(self, evaluator: Any, marks: Sequence[float], deadline_s: float) -> None:
        """
        Args:
            evaluator: handle of its actor.
            marks: progress at which to evaluate, rising.
            deadline_s: how long one evaluation may take.
        """
        self.deadline_s = deadline_s
        self._evaluator = evaluator
        self._marks = list(reversed(marks))
        self._waiting: deque[Update] = deque()
        self._evaluating = False

    def take_marks(self, progress: float) -> tuple[float, ...]:
        """The marks that have been passed since the last call."""
        taken = []
        while self._marks and self._marks[-1] <= progress:
            taken.append(self._marks.pop())
        return tuple(taken)

    def add(self, update: Update) -> None:
        """Its weights are to be evaluated once they are published."""
        self._waiting.append(update)

    def next(self) -> dict[Any, Scoring]:
        """Begin the next evaluation if none is under way, of weights that are published: reference -> what it is."""
        if self._evaluating or not self._waiting or self._waiting[0].at is None:
            return {}
        update = self._waiting.popleft()
        assert update.weights is not None, "an evaluation of weights that were not published"
        self._evaluating = True
        reference = self._evaluator.evaluate.remote(1 in update.marks, *update.weights)
        return {reference: Scoring(update, now_s() + self.deadline_s)}

    def done(self) -> None:
        """The evaluation under way has ended."""
        self._evaluating = False
