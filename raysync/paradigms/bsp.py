"""Bulk synchronous parallel: all workers wait for each other in each round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from typing_extensions import override

from raysync.core.capability import Capability, Demand
from raysync.core.decisions import Apply, Decision, Push, Release
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster


@dataclass
class BSP(Paradigm):
    """A round ends when no member computes: all its pushes become one update, and all continue.

    Source: Gerbessiotis and Valiant, "Direct bulk-synchronous parallel algorithms" (1994), as used
    by parameter servers: "requiring all workers to synchronize at every iteration" (LagTuner,
    section 1).

    No member starts iteration c + 1 before every member has pushed c. A newcomer enters the round
    in progress; the push of a worker that left counts if it has arrived. A round has no clock, so a
    switch back to BSP does not stall.

    The updates of a server and of an all-reduce are equal bit by bit; only the seconds differ
    (`virtual.all_reduce`).
    """

    name: ClassVar[str] = "bsp"

    # how a round's gradients are exchanged; all-reduce: by the faster of ring and tree
    exchange: Literal["server", "all-reduce", "ring", "tree"] = "server"

    @property
    @override
    def collective(self) -> str:
        return "" if self.exchange == "server" else self.exchange

    @override
    def demands(self) -> Iterator[Demand]:
        if self.collective:
            yield Capability.ALL_REDUCE, f"exchange: {self.exchange}"

    @override
    def pushes_per_update(self, workers: int, phase: str = "") -> int:
        return workers

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        return self._end_round(roster)

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        return self._end_round(roster)  # all others may have waited for it

    def _end_round(self, roster: Roster) -> list[Decision]:
        if roster.computing:
            return []
        update: list[Decision] = [Apply(tuple(roster.buffered))] if roster.buffered else []
        return [*update, *map(Release, roster.held)]

    @override
    def explain(self, roster: Roster, worker: str) -> str:
        others = len(roster.computing)
        return (
            f"the round ends when {roster.names(roster.computing, others)}"
            f" {'have' if others > 1 else 'has'} pushed"
        )
