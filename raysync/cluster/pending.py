"""What the controller waits for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from raysync.cluster.shards import Parts
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


@dataclass(slots=True)
class Scoring:
    """An evaluation under way."""

    update: Update
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
        return f"{self.slot}#{self.number}"


Pending = Step | Update | Scoring | Comeback


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
        acks = [ack for update in self._updates if update.version <= version for ack in update.acks]
        try:
            ray.get(acks, timeout=patience_s)
        except GetTimeoutError:
            raise
        except RayError as error:
            return reason(error)
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
    cause = error.cause if isinstance(error, RayTaskError) else error
    return f"{type(cause).__name__}: {cause}".strip()
