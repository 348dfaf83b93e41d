"""The least number of workers that a run goes on with (`cluster.min_workers`).

    fewer are there, and others are on their way back     the run waits for them
    fewer are there, and too few are on their way         the run has failed

While the run waits, everything is decided as always, and the journal has it; only the calls of the
releases are held back. Steps that were under way end, and their pushes count. Once there are enough
workers again the releases are carried out in their order, on the weights that are published then: a
release names the oldest version that its worker may read. The seconds for which one was held back
are in the report of its push; neither the deadline of a step nor its duration counts them.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from raysync.core.decisions import Release
from raysync.engine.backend import Backend
from raysync.engine.inflight import InFlight
from raysync.engine.rejoin import Comebacks
from raysync.engine.topology import Topology, roster_of
from raysync.errors import RunFailed


class Quorum:
    """It holds releases back while too few workers are there."""

    def __init__(
        self,
        min_workers: int,
        backend: Backend,
        topology: Topology,
        comebacks: Comebacks,
        inflight: InFlight,
        carry_out: Callable[[Release], None],
        remark: Callable[[str], None],
    ) -> None:
        """
        Args:
            min_workers: the least number of workers; 1: the run never waits for it.
            backend: has the clock.
            topology: its roster has the workers that are there.
            comebacks: the workers that are on their way.
            inflight: the steps under way.
            carry_out: called with each release that was held back, when the run goes on.
            remark: called with what the journal should say.
        """
        self._min_workers = min_workers
        self._backend, self._topology, self._comebacks = backend, topology, comebacks
        self._inflight, self._carry_out, self._remark = inflight, carry_out, remark
        self.is_waiting = False
        """Whether too few workers are there, so that releases are held back."""
        self._since = 0.0
        """Seconds since the run began: when it began to wait."""
        self._is_told = False
        """Whether the journal says already that the run waits."""
        self._held_back: dict[str, tuple[Release, float]] = {}
        """Worker -> its release, and when that was decided, in the order of the decisions."""

    def hold_back(self, release: Release) -> None:
        """Keep a release until there are enough workers."""
        self._held_back[release.worker] = release, self._backend.now

    def leaves(self, worker: str) -> None:
        """Take in that a worker is about to leave: also what is decided at that moment is held back
        if too few remain.
        """
        self._held_back.pop(worker, None)
        there = self._there - 1
        if there < self._min_workers > 1 and not self.is_waiting:
            self.is_waiting, self._is_told, self._since = True, False, self._backend.now

    def check(self, last: str) -> None:
        """Check that enough workers are there or on their way.

        Args:
            last: which worker was lost last, and why.

        Raises:
            RunFailed: there are too few.
        """
        there, coming = self._there, len(self._comebacks)
        if there + coming < self._min_workers:
            raise RunFailed(f"{self._too_few(there, coming)}; {last}")
        if self.is_waiting and not self._is_told:
            self._is_told = True
            self._remark(
                f"The run waits: {_counted(there)} there and {coming} on the way back, and"
                f" cluster.min_workers is {self._min_workers}."
            )

    def joined(self) -> None:
        """Let the run go on if there are enough workers again."""
        there = self._there
        if not self.is_waiting or there < self._min_workers:
            return
        now = self._backend.now
        self._remark(f"The run goes on: {_counted(there)} there, after {now - self._since:.3g} s.")
        held_back, self._held_back = self._held_back, {}
        self.is_waiting = False
        for release, since in held_back.values():
            self._carry_out(self._renewed(release))
            if (step := self._inflight.of_worker(release.worker)) is not None:
                step.report = replace(step.report, held_back_s=now - since)

    @property
    def _there(self) -> int:
        return sum(len(roster.live) for roster in self._topology.rosters)

    @property
    def held_back(self) -> dict[str, Release]:
        """Worker -> its release that is held back."""
        return {worker: release for worker, (release, _) in self._held_back.items()}

    def resume(self) -> None:
        """Wait again if too few workers were there at the checkpoint that the run goes on from."""
        if self._there < self._min_workers:
            self.is_waiting, self._since = True, self._backend.now

    def _renewed(self, release: Release) -> Release:
        """Return the release as it is carried out now: it pulls what is published now."""
        published = roster_of(self._topology, release.worker).published
        return replace(release, version=published) if release.pull else release

    def _too_few(self, there: int, coming: int) -> str:
        if self._min_workers == 1:
            return "every worker is gone"
        return (
            f"too few workers: {there} there and {coming} on the way back, and"
            f" cluster.min_workers is {self._min_workers}"
        )


def _counted(workers: int) -> str:
    return f"{workers} worker{'s are' if workers != 1 else ' is'}"
