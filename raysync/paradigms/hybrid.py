"""The hybrid parameter server: how many pushes make an update, how far ahead they may be, and how
often weights are pulled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge
from pydantic import BeforeValidator

from raysync.core.capability import Capability, Demand
from raysync.core.decisions import Apply, Decision, Push, Release
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster

Count = Annotated[int, Ge(0)]
Tolerance = Annotated[
    Count | Literal["inf"], BeforeValidator(lambda value: "inf" if value == inf else value)
]
"""A tolerance in clocks; YAML's `.inf` is accepted, too."""


@dataclass
class Hybrid(Paradigm):
    """An update takes k pushes that are not too far ahead; exactly their workers continue, and pull
    weights at intervals.

    Source: Group 8, "Hybrid parameter server on Ray" (2020), section 3.3 and figures 4, 6 and 8.
        Its baselines: synchronous (all, 0, 1), preset `hybrid-sync`; asynchronous (1, inf, 1),
        preset `hybrid-async`. K-async SGD (Dutta et al., "Slow and Stale Gradients Can Win the
        Race", 2018) is (k, inf, 1), preset `k-async`.
    The paradigm: push (w, c) is eligible if c - slow <= staleness_tolerance, where slow is the
        smallest clock of the members. As soon as min(k, members) pushes are eligible, one update
        takes that many, the smallest clock first, then in order of arrival; their workers are
        released. Each worker pulls at every pull_interval-th of its own releases.
    No setting hangs: a worker is released at a lead of at most staleness_tolerance + 1, so once no
        worker computes, every push is eligible. (As the paper's figures and the authors' loop have
        it, a quarter to a half of the settings hang.)
    Deviations:
        * The paper's figure 6 takes all workers within the tolerance; its program takes the first k
          of them, and so does this paradigm.
        * `snapshot="worker"`: each worker keeps the weights of its own last pull, as section 3.3.3
          has it. `"global"` is the program: workers pull at each release, but the weights that they
          pull are published by every pull_interval-th update only, the first among them. The
          program evaluates those, too; we evaluate the newest.
        * The program puts back what is not eligible; here it waits in the buffer, and its worker is
          held.
        * The settings of the update, `combine` and `lr_scaling`, determine whether gradients are
          summed, as in the program, or averaged.
        * Membership may change: the push of a worker that has left joins the next update, beyond k,
          if it has arrived.
    """

    name: ClassVar[str] = "hybrid"

    k: Annotated[int, Ge(1)] | Literal["all"] = "all"
    """The paper's num_workers_ps_update, in pushes."""
    staleness_tolerance: Tolerance = 0
    """The paper's staleness tolerance, in clocks."""
    pull_interval: Annotated[int, Ge(1)] = 1
    """The paper's pull_weights_interval_rule, in releases of a worker (`global`: in updates)."""
    snapshot: Literal["worker", "global"] = "worker"
    left_behind: list[list[str | int]] = field(default_factory=list, init=False)
    """The pushes [worker, clock] of workers that have left."""
    releases: dict[str, int] = field(default_factory=dict, init=False)
    """Worker -> its releases since its last pull, that one included; not counted where it always
    pulls."""
    updates: int = field(default=0, init=False)

    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        return self._updates(roster)

    def on_join(self, roster: Roster, worker: str) -> list[Decision]:
        return [self._release(worker)]

    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        self.releases.pop(worker, None)
        self.left_behind += [list(push) for push in roster.buffered if push[0] == worker]
        return self._updates(roster)

    def infeasible_reason(self, workers: int) -> str:
        if self.k == "all" or self.k <= workers:
            return ""
        return (
            f"k: {self.k} pushes, of {workers} worker{'s' * (workers > 1)}; allowed: 1 to"
            f" {workers}, or all"
        )

    def demands(self) -> Iterator[Demand]:
        if self.pull_interval > 1 and self.snapshot == "worker":
            yield Capability.SAME_WEIGHTS, f"pull_interval: {self.pull_interval}"

    def pushes_per_update(self, workers: int, phase: str = "") -> int:
        return workers if self.k == "all" else min(self.k, workers)

    def _updates(self, roster: Roster) -> list[Decision]:
        size = self._size(roster)
        if self._eligible(roster) < size or not roster.buffered:
            return []
        eligible = roster.held_within(self._reach(roster))
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

    def _size(self, roster: Roster) -> int:
        members = len(roster.members)
        return members if self.k == "all" else min(self.k, members)

    def _eligible(self, roster: Roster) -> int:
        """Return the number of eligible pushes of members; they are counted by pace, and bounded
        leads mean few paces.
        """
        if self.staleness_tolerance == "inf":
            return len(roster.held)
        return roster.count_held_within(self._reach(roster))

    def _reach(self, roster: Roster) -> int:
        """Return the largest lead, after its push, of a worker whose push is eligible."""
        return (
            roster.fast - roster.slow
            if self.staleness_tolerance == "inf"
            else self.staleness_tolerance + 1
        )

    def _release(self, worker: str) -> Release:
        if self.pull_interval == 1 or self.snapshot == "global":
            return Release(worker)
        done = self.releases.get(worker, 0)
        self.releases[worker] = (done + 1) % self.pull_interval
        return Release(worker, pull=done == 0)

    def explain(self, roster: Roster, worker: str) -> str:
        lead = roster.lead(worker) - 1
        if self.staleness_tolerance != "inf" and lead > self.staleness_tolerance:
            return (
                f"its push is {lead} clocks ahead of the slowest ({roster.slowest_worker()}); "
                f"the tolerance is {self.staleness_tolerance}"
            )
        count = self._eligible(roster)
        return (
            f"an update takes {self._size(roster)} pushes, {count} {'are' if count > 1 else 'is'}"
            f" there; computing: {roster.names(roster.computing, len(roster.computing))}"
        )
