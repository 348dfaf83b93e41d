"""Quorum: an update after enough pushes and a grace period."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from typing_extensions import override

from raysync.core.decisions import Apply, Decision, Push, Release, SetTimer
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster
from raysync.core.structs import LONGEST_S
from raysync.paradigms.ksync import is_late, reject

GRACE = "quorum: grace"  # the timer at the end of a grace period


# Deviations: the first source applies the pushes of a grace period one by one, each divided by
# the square root of the number of workers; here they are one update by their mean. In the second
# a worker computes on while its push waits, in fragments of the model, and the grace period
# adapts to the seconds of a step.
@dataclass
class Quorum(Paradigm):
    """An update takes the pushes that are there `grace_s` seconds after its first k.

    Source: the grace period of Liu et al., "Asynchronous Local-SGD Training for Language Modeling"
    (2024, arXiv 2401.09135), Algorithm 2; quorum, grace period and late pushes of "Decoupled
    DiLoCo" (2026, arXiv 2604.21428).

    Workers are held until the update, which comes early if nobody computes. A push is *late* if
    newer weights than its own are published. Special cases: with k of all workers and no grace
    period this is `bsp`; with k = 1 `asp`, or with `late: drop` `k-sync`.

    With fewer than k members, the update waits for all of them. The push of a worker that left
    takes part, but is none of the k. A grace period ends at its time, even if one of the k has
    left.
    """

    name: ClassVar[str] = "quorum"

    k: Annotated[int, Ge(1)] = 2
    grace_s: Annotated[float, Ge(0), Le(LONGEST_S)] = 0.0
    # a late push takes part in the next update, or is dropped and its worker released
    late: Literal["next", "drop"] = "next"
    in_grace: bool = field(default=False, init=False)

    @override
    def infeasible_reason(self, workers: int) -> str:
        if self.k <= workers:
            return ""
        return f"k: {self.k} workers of {workers}; allowed: 1 to {workers}"

    @override
    def pushes_per_update(self, workers: int, phase: str = "") -> int | None:
        size = min(self.k, workers)
        return None if self.grace_s and size < workers else size

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        if self.late == "drop" and is_late(roster, push):
            return reject(roster, push)
        return self._advance(roster)

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        return self._advance(roster)  # fewer members are left, so fewer are waited for

    @override
    def on_timer(self, roster: Roster, key: str) -> list[Decision]:
        self.in_grace = False
        return self._update(roster)

    def _advance(self, roster: Roster) -> list[Decision]:
        """Make the update, or begin its grace period, if it is time."""
        if not roster.buffered or not roster.computing:  # nothing to apply, or nobody to wait for
            return self._update(roster)
        if self.in_grace or len(roster.held) < self.k:
            return []
        if not self.grace_s:
            return self._update(roster)
        self.in_grace = True
        return [SetTimer(GRACE, roster.now + self.grace_s)]

    def _update(self, roster: Roster) -> list[Decision]:
        timer: list[Decision] = [SetTimer(GRACE, None)] if self.in_grace else []
        self.in_grace = False
        update: list[Decision] = [Apply(tuple(roster.buffered))] if roster.buffered else []
        return [*timer, *update, *map(Release, roster.held)]

    @override
    def explain(self, roster: Roster, worker: str) -> str:
        size, count = min(self.k, len(roster.members)), len(roster.held)
        waits = (
            f"the update waits {self.grace_s:g} s for others"
            if self.in_grace
            else f"the update waits for the pushes of {size}"
        )
        return (
            f"{waits}, {count} {'are' if count > 1 else 'is'} there; computing:"
            f" {roster.names(roster.computing, len(roster.computing))}"
        )
