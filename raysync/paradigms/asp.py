"""Asynchronous parallel: no worker ever waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from raysync.core.decisions import Apply, Decision, Push, Release
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster


@dataclass
class ASP(Paradigm):
    """Each push is applied at once and its worker released at once; no worker ever waits.

    Source: Dean et al., "Large Scale Distributed Deep Networks" (2012), Downpour SGD; LagTuner,
    section 1. Neither the lead nor the staleness of a gradient is bounded.
    """

    name: ClassVar[str] = "asp"

    @override
    def pushes_per_update(self, workers: int, phase: str = "") -> int:
        return 1

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        return [Apply((push,)), Release(push[0])]

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        return []

    @override
    def explain(self, roster: Roster, worker: str) -> str:
        raise AssertionError("under ASP no worker is held")
