"""The unplanned losses of a run: how many workers, servers and evaluators, and for how long."""

from __future__ import annotations

from collections import Counter
from typing import Any

from raysync.core.events import Joined, Left
from raysync.core.ids import WorkerId
from raysync.core.journal import ActorKind, Entry, Remark, Resumed


class Losses:
    """Counts what a journal tells of lost processes; an injected fault is no such loss."""

    def __init__(self) -> None:
        self._counts: Counter[ActorKind] = Counter()
        self._server_away_s = 0.0
        self._worker_away_s = 0.0  # of slots that have a worker again
        self._empty_since: dict[str, float] = {}  # slot that lost its worker -> when

    def feed(self, line: Entry | Remark | Resumed) -> None:
        match line:
            case Entry(event=Left(at=at, worker=worker), report=report) if report.is_loss:
                self._counts["worker"] += 1
                self._empty_since[WorkerId(worker).slot] = at
            case Entry(event=Joined(at=at, worker=worker)):
                self._worker_away_s += at - self._empty_since.pop(WorkerId(worker).slot, at)
            case Remark(lost=str(process), away_s=away_s):
                self._counts[process] += 1
                self._server_away_s += away_s
            case Resumed(lost=processes):
                self._counts.update(processes)

    def summary(self, now: float) -> dict[str, Any]:
        """Return the keys of `summary.json`; `now`: the latest time in the journal, in seconds."""
        still_away_s = sum(now - since for since in self._empty_since.values())
        return {
            "lost_workers": self._counts["worker"],
            "worker_away_s": self._worker_away_s + still_away_s,
            "lost_servers": self._counts["server"],
            "server_away_s": self._server_away_s,
            "lost_evaluators": self._counts["evaluator"],
        }
