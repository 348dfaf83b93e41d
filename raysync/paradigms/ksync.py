"""K-sync and its siblings: an update takes the first k gradients.

Source: Dutta et al., "Slow and Stale Gradients Can Win the Race" (2018), section 2 (its K-async is
a preset of `Hybrid`); Chen et al., "Revisiting Distributed Synchronous SGD" (2016), section 3.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from typing_extensions import override

from raysync.core.capability import Capability, Demand
from raysync.core.decisions import Apply, Decision, Drop, Push, Release
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster


# Deviation: the sources cancel the stragglers of a round, but a running step cannot be cancelled
# here. A late worker finishes it, so it begins its next step later and is late more often. Drops
# are counted per worker, since they are a bias towards the data of fast workers.
def is_late(roster: Roster, push: Push) -> bool:
    """Return whether newer weights than the push's are published: another round has begun."""
    return roster.buffered[push].base < roster.published


def reject(roster: Roster, push: Push) -> list[Decision]:
    """Drop a late push, and release its worker to begin on the newest weights."""
    behind = roster.published - roster.buffered[push].base
    why = f"late: {behind} update{'s' * (behind > 1)} since its weights"
    return [Drop(push, why, reason="late"), Release(push[0])]


class Round(Paradigm):
    """All workers start on the same weights; a number of pushes ends the round."""

    @abstractmethod
    def size(self, workers: int) -> int:
        """Return how many pushes end a round of so many members, at least one."""

    @override
    def pushes_per_update(self, workers: int, phase: str = "") -> int:
        return self.size(workers)

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        return reject(roster, push) if is_late(roster, push) else self._end_round(roster)

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        # The round waits for fewer members. If the worker has pushed, its push takes part, but is
        # none of the number, so that no other worker becomes late.
        return self._end_round(roster)

    def _end_round(self, roster: Roster) -> list[Decision]:
        size = self.size(len(roster.members)) if roster.members else 0
        if len(roster.held) < size or not roster.buffered:
            return []
        return [Apply(tuple(roster.buffered)), *(Release(worker) for worker in roster.held)]

    @override
    def explain(self, roster: Roster, worker: str) -> str:
        size, count = self.size(len(roster.members)), len(roster.held)
        return (
            f"the round ends with the pushes of {size}, {count} {'are' if count > 1 else 'is'}"
            f" there; computing: {roster.names(roster.computing, len(roster.computing))}"
        )


@dataclass
class KSync(Round):
    """A round ends with the first k workers; later pushes are dropped.

    Source: Dutta et al. (2018), K-sync SGD. A late worker joins the next round. With fewer
    than k members, a round waits for all of them.
    """

    name: ClassVar[str] = "k-sync"

    k: Annotated[int, Ge(1)] = 2

    @override
    def size(self, workers: int) -> int:
        return min(self.k, workers)

    @override
    def infeasible_reason(self, workers: int) -> str:
        if self.k <= workers:
            return ""
        return f"k: {self.k} workers of {workers}; allowed: 1 to {workers}"


@dataclass
class BackupWorkers(Round):
    """BSP that does not wait for the last b workers of a round; their late pushes are dropped.

    Source: Chen et al. (2016): n + b workers, and an update takes the first n gradients. That is
    K-sync with k = n, but b stays the same when members change.
    """

    name: ClassVar[str] = "backup-workers"

    backups: Annotated[int, Ge(0)] = 1  # b, in workers

    @override
    def size(self, workers: int) -> int:
        return max(1, workers - self.backups)

    @override
    def infeasible_reason(self, workers: int) -> str:
        if self.backups < workers:
            return ""
        return (
            f"backups: {self.backups} of {workers} worker{'s' * (workers > 1)}; allowed: 0 to"
            f" {workers - 1}"
        )


@dataclass
class KBatchSync(Paradigm):
    """A round ends with the first k mini-batches, of any workers; late ones are dropped.

    Source: Dutta et al. (2018), K-batch-sync SGD. Before the round's end, a worker that pushed
    computes another batch on its present weights: none ever waits. k may exceed the number of
    workers.
    """

    name: ClassVar[str] = "k-batch-sync"

    k: Annotated[int, Ge(1)] = 2

    @override
    def demands(self) -> Iterator[Demand]:
        yield Capability.SAME_WEIGHTS, self.name

    @override
    def pushes_per_update(self, workers: int, phase: str = "") -> int:
        return self.k

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        if is_late(roster, push):
            return reject(roster, push)
        if len(roster.buffered) < self.k:
            return [Release(push[0], pull=False)]
        return [Apply(tuple(roster.buffered)), Release(push[0])]

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        return []

    @override
    def explain(self, roster: Roster, worker: str) -> str:
        raise AssertionError("under K-batch-sync no worker is held")


@dataclass
class KBatchAsync(Paradigm):
    """An update takes the first k mini-batches, however old; workers continue at once.

    Source: Dutta et al. (2018), K-batch-async SGD. No worker ever waits, and no push is dropped.
    """

    name: ClassVar[str] = "k-batch-async"

    k: Annotated[int, Ge(1)] = 2

    @override
    def pushes_per_update(self, workers: int, phase: str = "") -> int:
        return self.k

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        update: list[Decision] = (
            [Apply(tuple(roster.buffered))] if len(roster.buffered) >= self.k else []
        )
        return [*update, Release(push[0])]

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        return []

    @override
    def explain(self, roster: Roster, worker: str) -> str:
        raise AssertionError("under K-batch-async no worker is held")
