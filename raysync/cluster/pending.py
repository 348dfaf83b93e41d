"""What the controller waits for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayError, RayTaskError

from raysync.cluster.messages import StepReport
from raysync.cluster.shards import Parts
from raysync.core.decisions import Push
from raysync.core.ids import worker_id
from raysync.errors import RunFailed


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a worker slot: an actor."""

    name: str
    """`slot#number`"""
    slot: str
    number: int
    actor: Any
    actor_id: str
    """Ray's."""
    step: Any
    """The actor's method, for a gradient of as many parts as there are server shards."""


@dataclass(slots=True)
class Step:
    """A worker's iteration under way."""

    life: Life
    clock: int
    base: int
    pulls: bool
    batch_size: int
    gradient: Parts
    weights: Parts
    """That it computes on; kept only if delays are compensated."""
    deadline_s: float
    report: StepReport | None = None
    """The worker's answer; None until it has come. Then only the gradient is waited for."""
    fetched: list[Any] = field(default_factory=list)
    """The parts that came from another node: Ray does not evict them here while they are held."""


@dataclass(slots=True)
class Update:
    """An update, or a publication without one, under way on the server."""

    version: int
    progress: float
    marks: tuple[float, ...]
    """Marks on the progress at which these weights are evaluated."""
    weights: Parts | None
    """Of those with marks."""
    acks: Parts
    """References that are there when it is done: a version each, or the weights, which nobody here looks at."""
    deadline_s: float
    at: float | None = None
    """Seconds since the run began: when it was known to be published; of those with marks."""
    pushes: tuple[Push, ...] = ()
    """Whose gradients it takes."""

    def __str__(self) -> str:
        whose = ", ".join(f"{worker} (clock {clock})" for worker, clock in self.pushes)
        return f"update {self.version} of {whose}" if whose else f"publication of version {self.version}"


class Evaluated(Protocol):
    """Weights that are evaluated."""

    version: int
    progress: float
    marks: tuple[float, ...]
    weights: Parts | None
    at: float | None
    """Seconds since the run began: when they were published; None: not yet."""


@dataclass(slots=True)
class Scoring:
    """An evaluation under way."""

    update: Evaluated
    deadline_s: float


@dataclass(slots=True)
class Restart:
    """An evaluator that starts anew."""

    deadline_s: float


@dataclass(frozen=True, slots=True)
class Comeback:
    """A worker that starts in the place of one that crashed."""

    slot: str
    number: int
    """Of its life."""
    actor: Any
    due_at: float
    """Seconds since the run began: it joins no sooner, however soon it is ready."""
    deadline_s: float

    @property
    def name(self) -> str:
        """Its id once it has joined."""
        return worker_id(self.slot, self.number)


Pending = Step | Update | Scoring | Restart | Comeback


class Sent:
    """What was sent to the server and is not yet known to be done, the oldest first."""

    def __init__(self) -> None:
        self._updates: deque[Update] = deque()

    def add(self, update: Update) -> None:
        """It has just been sent."""
        self._updates.append(update)

    def done(self, version: int) -> None:
        """The server is known to have come to that version."""
        while self._updates and self._updates[0].version <= version:
            self._updates.popleft()

    def failure(self, version: int, patience_s: float) -> str | None:
        """The error of the first update up to that version that failed; None if all are done.

        Raises:
            GetTimeoutError: one is still under way.
        """
        for update in self._updates:
            if update.version > version:
                break
            try:
                ray.get(list(update.acks), timeout=patience_s)
            except GetTimeoutError:
                raise
            except RayError as error:
                return f"{update}: {reason(error)}" if is_lost(error) else reason(error)
        return None

    def check(self, version: int, late: str) -> None:
        """At a deadline: the server has failed if it has not come to that version."""
        try:
            failure = self.failure(version, 0)
        except GetTimeoutError:
            failure = late
        if failure:
            raise RunFailed(f"server: {failure}")


def reason(error: RayError) -> str:
    """The user's part of a Ray error, in a few lines."""
    if is_lost(error):
        return "what it needs was lost with the node that held it"
    return f"{type(_cause(error)).__name__}: {_cause(error)}".strip()


def is_lost(error: RayError) -> bool:
    """Whether a value is gone, in place of which a call got this error."""
    return isinstance(_cause(error), ObjectLostError)


def _cause(error: RayError) -> Exception:
    cause: Exception = error.cause if isinstance(error, RayTaskError) else error
    return cause
