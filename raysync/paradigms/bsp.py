"""Bulk synchronous parallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from raysync.core.decisions import Apply, Decision, Push, Release
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster


@dataclass
class BSP(Paradigm):
    """A round ends when no member computes any more: all its pushes become one update, and all
    workers are released.

    Source: Gerbessiotis and Valiant, "Direct bulk-synchronous parallel algorithms" (1994), as
    parameter servers use it:
        "requiring all workers to synchronize at every iteration" (LagTuner, section 1).
    The paradigm: no member starts iteration c + 1 before every member has pushed c.
    Deviations:
        * Membership may change. A newcomer enters the round in progress; the push of a worker that
          leaves counts if it has arrived.
        * A round ends when no member computes, not at a clock, so that a switch back to BSP does
          not stall.
    """

    name: ClassVar[str] = "bsp"

    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        return self._end_round(roster)

    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        return self._end_round(roster)  # all others may have waited for it

    def _end_round(self, roster: Roster) -> list[Decision]:
        if roster.computing:
            return []
        update: list[Decision] = [Apply(tuple(roster.buffered))] if roster.buffered else []
        return update + [Release(worker) for worker in roster.held]

    def explain(self, roster: Roster, worker: str) -> str:
        others = len(roster.computing)
        return (
            f"the round ends when {roster.names(roster.computing, others)}"
            f" {'have' if others > 1 else 'has'} pushed"
        )
