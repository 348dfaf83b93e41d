"""LagTuner, a restatement of dynamic stale synchronous parallel (DSSP)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le

from raysync.core.decisions import Apply, Decision, Note, Push, Release
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster
from raysync.errors import ConfigError

TIE_S = 1e-9
"""Predicted waits that differ by less are equal, so that floating-point noise does not choose."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The prediction of the synchronisation controller for one number of extra iterations."""

    extra: int
    """r*, the number of further iterations that p may run."""
    distance_s: float | None
    """The time from p's r*-th further push to n's nearest predicted push; None while an interval is
    not known."""
    wait_s: float | None
    """The time from that push of p to the push of n that brings p's lead back to s_lower; None
    likewise."""


@dataclass
class LagTuner(Paradigm):
    """Chooses a worker's staleness from `[s_lower, s_upper]`, predicting when the slowest pushes.

    Source: Kamma, "LagTuner: Adaptive Staleness Orchestration for Parameter-Server AI Training"
        (2026), Algorithms 1 and 2; where they are silent, the original: Zhao et al., "Dynamic Stale
        Synchronous Parallel Distributed Training for Deep Learning" (2019), Algorithm 2.
    Symbols: t_p is the number of pushes received from p; lead is t_p - t_slowest; r_p is the credit
        of p; n is the slowest worker; A is the time of the latest push; I is the time between the
        two latest pushes.
    The paradigm: each push is applied at once. With r_p > 0, p spends one and is released.
    Otherwise p is
        released at lead <= s_lower. Beyond that, if no worker is further ahead, the controller
        simulates the next iterations of p and of n and chooses r*; p may then run r* more
        iterations. With r* = 0 it waits until its lead is <= s_lower.

    The paper leaves questions open, and contradicts itself. Where a reading decides what can be
    reproduced, it is an option:

    `bound`:
        * `hard`: section 4.2 ("|t_i - t_j| <= s_U at all times"), for iterations that are started:
          no release at a lead above s_upper, ever. At lead L, r is searched in
          [0, min(s_upper - s_lower, s_upper - L + 1)], a grant of r* gives exactly r* releases, and
          predicted pushes of n are never in the past. The gap of *completed* pushes can reach
          s_upper + 1, as under SSP.
        * `literal`: Algorithm 1 word for word. r is searched in [0, s_upper - s_lower] whatever the
          lead is; a grant of r* gives r* + 1 releases (line 22 releases without spending); grants
          repeat whenever credit runs out (line 18), so the lead grows without bound. Predicted
          pushes of n may lie in the past. Only this reading can give the paper's Table 2, where
          a permanently faster worker keeps its own rate; only `hard` conforms to section 4.2.
    `predict`, which stands for Algorithm 2 under either bound:
        * `align`: r* minimises |S_n[k] - S_p[r]| over k and r, where S_p[i] = A_p + i I_p and
          S_n[i] = A_n + I_n + i I_n, both with i in [0, s_upper - s_lower] (the original's
          Algorithm 2).
        * `wait`: r* minimises the predicted wait until the release rule is met: n's push that
          brings p's lead back to s_lower, less S_p[r]. With a slower n that grows with r, so
          r* = 0, as under SSP(s_lower).
    `interval`:
        * `push`: an interval lasts from push to push, as in the paper, with the worker's own
          waiting.
        * `busy`: it lasts from release to push, without that waiting.

    These readings have no option; they hold under both bounds, so `literal` shares them:

    * r* counts iterations. Section 3.2 also speaks of "optimal thresholds s*", which are s_L + r*
      by the proof of Theorem 2, and the original's figure 2 shows one: p stops at its r*-th further
      push and goes on after *one* push of n, as its lead is then back within s*. We follow line 24:
      once the grant is used up and the controller grants no more, p waits until its lead is back
      within s_lower itself, which takes r* more pushes of n. The threshold reading is not
      implemented.
    * Line 11 lets the server aggregate pushes that arrive together. Here none are aggregated: each
      push is an update of its own, in the order of arrival, even where several arrive at once.
    * The argmin of line 11 of Algorithm 2 says nothing about ties: the smallest r is taken, and
      predictions that differ by less than TIE_S are equal. Several workers may be the fastest
      (line 18): each at the largest clock is. The slowest is the member with the smallest clock; of
      several, the one with the smallest id.
    * With fewer than two pushes of p or of n an interval is not known, and neither paper says what
      the controller then returns. Here it is r* = 0, so p waits as in line 24.
    * A held worker gets no second call of the controller (line 24).

    Notes: `controller` for each call: both intervals (null where unknown), the lead, r*, the
    distance that `align` minimises and the predicted wait until the release rule is met; `waited`
    when the grant is used up and its wait is known: predicted and actual wait. All are in seconds.
    """

    name: ClassVar[str] = "lagtuner"

    s_lower: Annotated[int, Ge(0)] = 3
    """s_L, in clocks."""
    s_upper: Annotated[int, Ge(0), Le(1000)] = 15
    """s_U, in clocks."""
    bound: Literal["hard", "literal"] = "hard"
    predict: Literal["align", "wait"] = "align"
    interval: Literal["push", "busy"] = "push"
    credit: dict[str, int] = field(default_factory=dict, init=False)
    """r_p: the iterations that a worker may still run without asking the controller."""
    predicted_s: dict[str, float | None] = field(default_factory=dict, init=False)
    """Worker -> its predicted wait, while the actual wait is not known."""

    def __post_init__(self) -> None:
        if self.s_lower > self.s_upper:
            raise ConfigError(
                f"lagtuner: s_lower ({self.s_lower}) must not be above s_upper ({self.s_upper})."
            )

    def pushes_per_update(self, workers: int, phase: str = "") -> int:
        return 1

    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        worker = push[0]
        decisions: list[Decision] = [Apply((push,))]
        if self._spend(worker):
            decisions.append(Release(worker))
        elif roster.lead(worker) > self.s_lower:
            decisions += self._ask(roster, worker)
        return decisions + self._releases(roster, already=decisions)

    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        self.credit.pop(worker, None)
        self.predicted_s.pop(worker, None)
        return self._releases(roster, already=[])

    def _spend(self, worker: str) -> bool:
        credit = self.credit.pop(worker, 0)
        if credit > 1:
            self.credit[worker] = credit - 1
        return credit > 0

    def _ask(self, roster: Roster, worker: str) -> list[Decision]:
        """Carry out Algorithm 1, lines 18 to 23, for a worker beyond s_lower without credit."""
        decisions: list[Decision] = []
        if not roster.is_fastest(worker):
            return decisions
        # The last grant is used up, and p did not wait after it.
        decisions += self._waited(worker, 0.0)
        slowest = roster.slowest_worker()
        assert slowest is not None, "a worker that asks is a member"
        interval_s, slowest_interval_s = (
            self._interval_s(roster, worker),
            self._interval_s(roster, slowest),
        )
        forecast = Forecast(extra=0, distance_s=None, wait_s=None)
        if interval_s is not None and slowest_interval_s is not None:
            forecast = self._forecast(roster, worker, slowest, interval_s, slowest_interval_s)
        self.predicted_s[worker] = forecast.wait_s
        decisions.append(
            Note(
                "controller",
                worker,
                {
                    "slowest": slowest,
                    "lead": roster.lead(worker),
                    "extra": forecast.extra,
                    "interval_s": interval_s,
                    "slowest_interval_s": slowest_interval_s,
                    "distance_s": forecast.distance_s,
                    "predicted_wait_s": forecast.wait_s,
                },
            )
        )
        if forecast.extra:
            credit = forecast.extra if self.bound == "literal" else forecast.extra - 1
            if credit:
                self.credit[worker] = credit
            decisions.append(Release(worker))
        return decisions

    def _releases(self, roster: Roster, already: list[Decision]) -> list[Decision]:
        """Release the workers whose lead is back within s_lower, and note the actual wait of those
        with a predicted one.
        """
        released = {decision.worker for decision in already if isinstance(decision, Release)}
        decisions: list[Decision] = []
        for worker in roster.held_within(self.s_lower):
            if worker in released:
                continue
            if worker in self.predicted_s:
                pushed_at = roster.telemetry(worker).pushed_at
                decisions += self._waited(
                    worker, roster.now - pushed_at if pushed_at is not None else 0.0
                )
            decisions.append(Release(worker))
        return decisions

    def _waited(self, worker: str, actual_s: float) -> list[Decision]:
        if worker not in self.predicted_s:
            return []
        return [
            Note(
                "waited",
                worker,
                {"predicted_wait_s": self.predicted_s.pop(worker), "actual_wait_s": actual_s},
            )
        ]

    def _forecast(
        self,
        roster: Roster,
        worker: str,
        slowest: str,
        interval_s: float,
        slowest_interval_s: float,
    ) -> Forecast:
        """Carry out Algorithm 2, the synchronisation controller."""
        pushed_at, next_push = (
            roster.telemetry(worker).pushed_at,
            roster.telemetry(slowest).pushed_at,
        )
        assert pushed_at is not None, "an interval without a push"
        assert next_push is not None, "an interval without a push"
        lead, extra_max = roster.lead(worker), self.s_upper - self.s_lower
        next_push += slowest_interval_s
        reach = extra_max
        if self.bound == "hard":
            reach = max(0, min(extra_max, self.s_upper - lead + 1))
            next_push = max(next_push, roster.now)
        distances_s, waits_s = [], []
        for extra in range(reach + 1):
            push = pushed_at + extra * interval_s
            missing = max(0, lead + extra - self.s_lower - 1)  # pushes of n beyond its next one
            distances_s.append(_distance_s(push - next_push, slowest_interval_s, extra_max))
            waits_s.append(max(0.0, next_push + missing * slowest_interval_s - push))
        costs_s = distances_s if self.predict == "align" else waits_s
        least_s = min(costs_s)
        best = next(extra for extra, cost_s in enumerate(costs_s) if cost_s <= least_s + TIE_S)
        return Forecast(best, distances_s[best], waits_s[best])

    def _interval_s(self, roster: Roster, worker: str) -> float | None:
        row = roster.telemetry(worker)
        if row.interval_s is None:
            return None
        return row.interval_s if self.interval == "push" else row.active_s

    def explain(self, roster: Roster, worker: str) -> str:
        return (
            f"{roster.lead(worker)} clocks ahead of the slowest ({roster.slowest_worker()}); "
            f"waits until that is {self.s_lower}, no extra iterations granted"
        )


def _distance_s(after_s: float, interval_s: float, steps_max: int) -> float:
    """Return the distance of a time from the nearest of 0, interval_s, ..., steps_max *
    interval_s.
    """
    if interval_s <= 0:
        return abs(after_s)
    step = min(max(round(after_s / interval_s), 0), steps_max)
    return abs(after_s - step * interval_s)
