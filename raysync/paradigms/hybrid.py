"""The hybrid parameter server: pushes per update, a tolerance of leads, and intervals of pulls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge
from pydantic import BeforeValidator
from typing_extensions import override

from raysync.core.capability import Capability, Demand
from raysync.core.decisions import Apply, Decision, Push, Release
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster

Count = Annotated[int, Ge(0)]
# in clocks; YAML's `.inf` is accepted, too
Tolerance = Annotated[
    Count | Literal["inf"], BeforeValidator(lambda value: "inf" if value == inf else value)
]


# Deviations:
#
# * Figure 6 takes all workers within the tolerance; the program, as here, the first k.
# * `snapshot: worker`: a worker keeps the weights of its last pull (section 3.3.3). `global`, the
#   program: workers always pull, from weights that every pull_interval-th update publishes, the
#   first among them. The program evaluates those; we evaluate the newest.
# * A push that is not eligible stays buffered and its worker held; the program puts it back.
# * `combine` and `lr_scaling` decide whether gradients are summed, as in the program.
# * A push that arrived before its worker left takes part in the next update, beyond k.
@dataclass
class Hybrid(Paradigm):
    """An update takes k pushes that are not too far ahead; their workers continue.

    Source: Group 8, "Hybrid parameter server on Ray" (2020), section 3.3 and figures 4, 6 and 8. As
    (k, tolerance, interval), its baselines are (all, 0, 1) and (1, inf, 1), the presets
    `hybrid-sync` and `hybrid-async`. K-async SGD (Dutta et al. 2018) is (k, inf, 1), the preset
    `k-async`.

    Push (w, c) is eligible if c - slow <= staleness_tolerance, slow being the members' smallest
    clock. Once min(k, members) pushes are eligible, an update takes that many, the smallest clock
    first, then by arrival, and releases their workers. A worker pulls at every pull_interval-th of
    its releases.

    No setting hangs: a released worker leads by at most staleness_tolerance + 1, so once none
    computes all pushes are eligible. (In the paper's figures and the authors' loop up to half of
    the settings hang.)
    """

    name: ClassVar[str] = "hybrid"

    # num_workers_ps_update in the paper, in pushes
    k: Annotated[int, Ge(1)] | Literal["all"] = "all"
    staleness_tolerance: Tolerance = 0
    # pull_weights_interval_rule, in releases of a worker (`global`: in updates)
    pull_interval: Annotated[int, Ge(1)] = 1
    snapshot: Literal["worker", "global"] = "worker"
    # pushes [worker, clock] of workers that left
    left_behind: list[list[str | int]] = field(default_factory=list, init=False)
    # worker -> releases since its last pull, inclusive; unless it always pulls
    releases: dict[str, int] = field(default_factory=dict, init=False)
    updates: int = field(default=0, init=False)

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        return self._update(roster)

    @override
    def on_join(self, roster: Roster, worker: str) -> list[Decision]:
        return [self._release(worker)]

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        self.releases.pop(worker, None)
        self.left_behind += [list(push) for push in roster.buffered if push[0] == worker]
        return self._update(roster)

    @override
    def infeasible_reason(self, workers: int) -> str:
        if self.k == "all" or self.k <= workers:
            return ""
        return (
            f"k: {self.k} pushes, of {workers} worker{'s' * (workers > 1)}; allowed: 1 to"
            f" {workers}, or all"
        )

    @override
    def demands(self) -> Iterator[Demand]:
        if self.pull_interval > 1 and self.snapshot == "worker":
            yield Capability.SAME_WEIGHTS, f"pull_interval: {self.pull_interval}"

    @override
    def pushes_per_update(self, workers: int, phase: str = "") -> int:
        return workers if self.k == "all" else min(self.k, workers)

    def _update(self, roster: Roster) -> list[Decision]:
        """Make as many updates as there are eligible pushes for."""
        size = self._pushes_needed(roster)
        if self._count_eligible(roster) < size or not roster.buffered:
            return []
        eligible = roster.held_within(self._largest_lead(roster))
        decisions: list[Decision] = []
        for start in range(0, len(eligible) - size + 1, max(1, size)):
            taken = eligible[start : start + size]
            pushes = [
                *((str(worker), int(clock)) for worker, clock in self.left_behind),
                *((worker, roster.clock(worker) - 1) for worker in taken),
            ]
            self.left_behind = []
            publish = self.snapshot == "worker" or self.updates % self.pull_interval == 0
            self.updates += 1
            decisions += [Apply(tuple(pushes), publish=publish), *map(self._release, taken)]
        return decisions

    def _pushes_needed(self, roster: Roster) -> int:
        members = len(roster.members)
        return members if self.k == "all" else min(self.k, members)

    def _count_eligible(self, roster: Roster) -> int:
        if self.staleness_tolerance == "inf":
            return len(roster.held)
        return roster.count_held_within(self._largest_lead(roster))  # few paces to count

    def _largest_lead(self, roster: Roster) -> int:
        """Return the largest lead, after its push, of a worker with an eligible push."""
        if self.staleness_tolerance == "inf":
            return roster.fast - roster.slow
        return self.staleness_tolerance + 1

    def _release(self, worker: str) -> Release:
        if self.pull_interval == 1 or self.snapshot == "global":
            return Release(worker)
        since_pull = self.releases.get(worker, 0)
        self.releases[worker] = (since_pull + 1) % self.pull_interval
        return Release(worker, pull=since_pull == 0)

    @override
    def explain(self, roster: Roster, worker: str) -> str:
        lead = roster.lead(worker) - 1
        if self.staleness_tolerance != "inf" and lead > self.staleness_tolerance:
            return (
                f"its push is {lead} clocks ahead of the slowest ({roster.slowest_worker()}); "
                f"the tolerance is {self.staleness_tolerance}"
            )
        count = self._count_eligible(roster)
        computing = roster.names(roster.computing, len(roster.computing))
        return (
            f"an update takes {self._pushes_needed(roster)} pushes, {count}"
            f" {'are' if count > 1 else 'is'} there; computing: {computing}"
        )
