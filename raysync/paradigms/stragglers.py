"""The detection of stragglers, for Sync-Switch's online policies."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median, pstdev

from raysync.core.decisions import Note
from raysync.core.roster import Roster

FEW = 4  # with fewer workers, mean minus one standard deviation says nothing


@dataclass
class Detector:
    """Finds workers that are slow in several consecutive detection windows.

    Source: Li et al., "Sync-Switch" (2021), section IV-B2 (its program has no detector): "a worker
    k is identified as a straggler if its training throughput over a sliding window S_k is lower
    than the difference between the cluster average and standard deviation S - sigma, for a number
    of consecutive detection windows".

    Throughput is pushes per active second, from release to push. (Under a barrier pushes per second
    are equal; and the paper's stragglers have slow links, so pure computing does not show them.) A
    running step counts as soon as it lowers the throughput, so a stuck worker is found before its
    next push. A worker that was held during a whole window keeps its former throughput. Windows
    follow one another, each `window` steps of the median worker long.
    """

    window: int  # in steps of the median worker
    windows: int  # the consecutive slow windows that make a straggler
    margin: float  # the share by which a slow worker is slower than the others
    pushes: dict[str, int] = field(default_factory=dict)  # worker -> its pushes in this window
    # worker -> active seconds of these pushes
    active_s: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)  # worker -> latest known throughput
    slow: dict[str, int] = field(default_factory=dict)  # worker -> consecutive slow windows
    # the stragglers at the end of the latest window, the slowest first
    stragglers: list[str] = field(default_factory=list)

    def pushed(self, worker: str, active_s: float) -> None:
        self.pushes[worker] = self.pushes.get(worker, 0) + 1
        self.active_s[worker] = self.active_s.get(worker, 0.0) + active_s

    def forget(self, worker: str) -> None:
        if worker in self.stragglers:
            self.stragglers.remove(worker)
        for counts in (self.pushes, self.slow):
            counts.pop(worker, None)
        for measured in (self.active_s, self.rates):
            measured.pop(worker, None)

    def close_window(self, roster: Roster) -> list[Note]:
        """End the window; note each new or recovered straggler."""
        self.rates = rates = self._throughputs(roster)
        self.pushes, self.active_s = {}, {}
        self.slow = {worker: self.slow.get(worker, 0) + 1 for worker in self._slow_workers()}
        before = self.stragglers
        stragglers = (worker for worker, count in self.slow.items() if count >= self.windows)
        self.stragglers = sorted(stragglers, key=rates.__getitem__)
        notes = [
            Note(
                "straggler",
                worker,
                {
                    "pushes_per_active_s": rates[worker],
                    "windows": self.slow[worker],
                    "mean_pushes_per_active_s": sum(rates.values()) / len(rates),
                },
            )
            for worker in self.stragglers
            if worker not in before
        ]
        return notes + [
            Note("recovered", worker, {"pushes_per_active_s": rates.get(worker)})
            for worker in before
            if worker not in self.stragglers
        ]

    def window_s(self) -> float | None:
        """Return the seconds of the next window; None while no throughput is known."""
        return self.window / median(self.rates.values()) if self.rates else None

    def _throughputs(self, roster: Roster) -> dict[str, float]:
        """Return each member's throughput; the others' mean for one that has not pushed yet."""
        measured, bounds = {}, {}  # bounds: if the running step ended now
        for worker in roster.members:
            pushes, active_s = self.pushes.get(worker, 0), self.active_s.get(worker, 0.0)
            if active_s > 0:
                measured[worker] = pushes / active_s
            elif worker in self.rates:
                measured[worker] = self.rates[worker]
            released_at = roster.telemetry(worker).released_at
            if (
                worker in roster.computing
                and released_at is not None
                and active_s + roster.now > released_at
            ):
                bounds[worker] = (pushes + 1) / (active_s + roster.now - released_at)
        mean = fmean(measured.values()) if measured else None
        return {
            worker: min(rate, bounds.get(worker, rate))
            for worker in roster.members
            if (rate := measured.get(worker, mean)) is not None
        }

    # Guard: a slow worker is also below (1 - margin) x the mean of the *others*. Of two workers the
    # slower is never below mean - sigma, of three the slowest always is: with fewer than four only
    # this test counts. From four on both must hold: with normal jitter one healthy worker in six
    # is below mean - sigma. Limit: if half of the workers or more are equally slow, they are at
    # mean - sigma themselves.
    def _slow_workers(self) -> list[str]:
        count, total = len(self.rates), sum(self.rates.values())
        if count < 2:
            return []
        floor = fmean(self.rates.values()) - pstdev(self.rates.values())
        return [
            worker
            for worker, rate in self.rates.items()
            if rate < (1 - self.margin) * (total - rate) / (count - 1)
            and (count < FEW or rate < floor)
        ]
