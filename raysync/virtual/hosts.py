"""The cores of hosts, which the workers there share while they compute.

Processor sharing: while the workers that compute on a host would take more cores than it has, each
of them slows down by the same factor; one that waits, or whose weights are under way, leaves its
cores to the others. So the end of a step moves whenever another one begins or ends. It is found by
a clock that runs at the common pace, min(1, cores / cores that are wanted): a step ends when this
clock has moved on by the time that the step takes alone, whatever happens meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Protocol


class Timeline(Protocol):
    """The backend, as hosts see it."""

    @property
    def now(self) -> float:
        """The seconds since the run began."""

    def schedule(self, at: float, happens: Callable[[Any], None], argument: Any) -> None:
        """See `Backend.schedule`."""


class Job:
    """A step that computes on a host."""

    __slots__ = ("cores", "done", "is_over", "seconds")

    def __init__(self, seconds: float, cores: float, done: Callable[[], None]) -> None:
        """
        Args:
            seconds: of computing, if the cores are its own.
            cores: that it takes.
            done: called when it has computed.
        """
        self.seconds, self.cores, self.done = seconds, cores, done
        self.is_over = False


class Host:
    """The cores of one host, and the jobs that compute there."""

    def __init__(self, cores: float, timeline: Timeline) -> None:
        self._cores = cores
        self._timeline = timeline
        self._jobs: list[tuple[float, int, Job]] = []
        """A heap: the time of the common clock at which a job ends, the number of the job, and the
        job, which may be over already."""
        self._wanted = 0.0
        """The cores that the jobs would take."""
        self._clock = 0.0
        """The common clock: the seconds of computing of a job that has been there all the time."""
        self._at = 0.0
        """When the common clock stood there, in seconds since the run began."""
        self._number = 0
        self._plan = 0
        """The number of the latest plan: earlier ones do not hold any more."""

    def enter(self, job: Job) -> None:
        """Let a job compute from now on, unless it is over already."""
        if job.is_over:
            return
        self._advance()
        self._number += 1
        self._wanted += job.cores
        heappush(self._jobs, (self._clock + job.seconds, self._number, job))
        self._plan_end()

    def leave(self, job: Job) -> None:
        """End a job that has not computed to its end; it may not have entered, either."""
        job.is_over = True
        if not any(each is job for _, _, each in self._jobs):
            return
        self._advance()
        self._jobs = [entry for entry in self._jobs if entry[2] is not job]
        heapify(self._jobs)
        self._wanted -= job.cores
        self._plan_end()

    @property
    def _pace(self) -> float:
        return min(1.0, self._cores / self._wanted)

    def _advance(self) -> None:
        now = self._timeline.now
        if self._jobs:
            self._clock += (now - self._at) * self._pace
        else:
            self._clock = self._wanted = 0.0  # so that no errors of rounding add up
        self._at = now

    def _plan_end(self) -> None:
        self._plan += 1
        if self._jobs:
            ends_at = self._at + (self._jobs[0][0] - self._clock) / self._pace
            self._timeline.schedule(max(ends_at, self._at), self._end, self._plan)

    def _end(self, plan: int) -> None:
        if plan != self._plan:
            return
        self._at, self._clock = self._timeline.now, self._jobs[0][0]
        over = []
        while self._jobs and self._jobs[0][0] <= self._clock:
            over.append(heappop(self._jobs)[2])
        for job in over:
            job.is_over = True
            self._wanted -= job.cores
        self._plan_end()
        for job in over:
            job.done()


Seat = tuple[Host, float]
"""The host of a worker, and the cores that it takes while it computes."""
