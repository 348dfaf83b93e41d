"""Stale synchronous parallel: a bound on the lead over the slowest worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from typing_extensions import override

from raysync.core.decisions import Apply, Decision, Push, Release
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster


# Deviations: a newcomer starts at the slowest member's clock; a released worker pulls the newest
# model, while the paper's may read a cache that is at most s clocks old.
@dataclass
class SSP(Paradigm):
    """Each push is applied at once; a worker may be `staleness` clocks ahead of the slowest.

    Source: Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server" (2013): p may start an iteration iff t_p - min_q t_q <= s, where t_p counts the pushes
    of p.

    The bound holds for iterations that are *started*. The gap of *completed* pushes can reach s +
    1, for a worker that is then held. s = 0 releases as BSP does, but makes one update of each
    push.
    """

    name: ClassVar[str] = "ssp"

    staleness: Annotated[int, Ge(0)] = 3  # s, in clocks

    @override
    def pushes_per_update(self, workers: int, phase: str = "") -> int:
        return 1

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        decisions: list[Decision] = [Apply((push,))]
        for worker in roster.held_within(self.staleness):
            decisions.append(Release(worker))
        return decisions

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        # the slowest member may have left
        return [*map(Release, roster.held_within(self.staleness))]

    @override
    def explain(self, roster: Roster, worker: str) -> str:
        return (
            f"{roster.lead(worker)} clocks ahead of the slowest ({roster.slowest_worker()}); "
            f"the bound is {self.staleness}"
        )
