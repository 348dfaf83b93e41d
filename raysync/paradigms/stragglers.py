"""The detection of workers that are much slower than the others, for Sync-Switch's online
policies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median, pstdev

from raysync.core.decisions import Note
from raysync.core.roster import Roster

FEW = 4
"""With fewer workers, mean minus one standard deviation says nothing (see `Detector`)."""


@dataclass
class Detector:
    """Closes a detection window every few steps, and counts for each worker in how many consecutive
    windows it was slow.

    Source: Li et al., "Sync-Switch" (2021), section IV-B2: "a worker k is identified as a straggler
    if its training throughput over a sliding window S_k is lower than the difference between the
    cluster average and standard deviation S - sigma, for a number of consecutive detection
    windows". (Its program has no detector.)

    Throughput is pushes per active second, from a worker's release to its push: its computing and
    its link. (Under a barrier pushes per second are the same for all; and a slow link, by which the
    paper makes its stragglers, does not slow pure computing.) A step under way counts as soon as it
    lowers the throughput, so a stuck worker is found before its next push. A worker that was held
    during a whole window keeps its former throughput. A window is `window` steps of the median
    worker long; each begins where the last one ended.

    Guard: a worker is slow only if its throughput is also below (1 - margin) x the mean of the
    *others*. Of two workers the slower is exactly at mean - sigma and never below; of three the
    slowest is always below, whatever the jitter; so with fewer than four workers only this second
    test counts. From four workers on both must hold: of healthy workers with normal jitter one in
    six is below mean - sigma in any window, and their number grows with the cluster.

    Limits: from four workers on, stragglers are found while they are fewer than half; equal ones at
    a half are at mean - sigma themselves. False alarms of equal workers with the defaults (2 to 16
    of them, BSP and ASP, lognormal jitter): none in 15,000 windows at 5 % and at 10 %, one in 4,000
    at 20 %. A worker that slows down to half or less is found after 3 or 4 windows.
    """

    window: int
    """The length of a window, in steps of the median worker."""
    windows: int
    """The number of consecutive slow windows that make a worker a straggler."""
    margin: float
    """The share of the others' throughput by which a slow worker is slower."""
    pushes: dict[str, int] = field(default_factory=dict)
    """Worker -> its pushes in this window."""
    active_s: dict[str, float] = field(default_factory=dict)
    """Worker -> the active seconds of its pushes in this window."""
    rates: dict[str, float] = field(default_factory=dict)
    """Worker -> its latest known throughput, in pushes per active second."""
    slow: dict[str, int] = field(default_factory=dict)
    """Worker -> the number of consecutive windows in which it was slow."""
    stragglers: list[str] = field(default_factory=list)
    """The stragglers at the end of the latest window, the slowest first."""

    def pushed(self, worker: str, active_s: float) -> None:
        """Record a push, so many seconds after the worker's release."""
        self.pushes[worker] = self.pushes.get(worker, 0) + 1
        self.active_s[worker] = self.active_s.get(worker, 0.0) + active_s

    def forget(self, worker: str) -> None:
        """Forget a worker, which has left or was suspended."""
        if worker in self.stragglers:
            self.stragglers.remove(worker)
        for counts in (self.pushes, self.slow):
            counts.pop(worker, None)
        for measured in (self.active_s, self.rates):
            measured.pop(worker, None)

    def close_window(self, roster: Roster) -> list[Note]:
        """End the window; return a note on each worker that has become a straggler or is one no
        longer.
        """
        self.rates = self._rates(roster)
        self.pushes, self.active_s = {}, {}
        self.slow = {worker: self.slow.get(worker, 0) + 1 for worker in self._slow()}
        before, slow = (
            self.stragglers,
            (worker for worker, count in self.slow.items() if count >= self.windows),
        )
        self.stragglers = sorted(slow, key=self.rates.__getitem__)
        rates = self.rates
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
        """Return the length of the next window in seconds; None while no throughput is known."""
        return self.window / median(self.rates.values()) if self.rates else None

    def _slow(self) -> list[str]:
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

    def _rates(self, roster: Roster) -> dict[str, float]:
        known, bounds = {}, {}
        for worker in roster.members:
            pushes, active_s = self.pushes.get(worker, 0), self.active_s.get(worker, 0.0)
            if active_s > 0:
                known[worker] = pushes / active_s
            elif worker in self.rates:
                known[worker] = self.rates[worker]
            released_at = roster.telemetry(worker).released_at
            if (
                worker in roster.computing
                and released_at is not None
                and active_s + roster.now > released_at
            ):
                bounds[worker] = (pushes + 1) / (active_s + roster.now - released_at)
        usual = fmean(known.values()) if known else None
        return {
            worker: min(rate, bounds.get(worker, rate))
            for worker in roster.members
            if (rate := known.get(worker, usual)) is not None
        }
