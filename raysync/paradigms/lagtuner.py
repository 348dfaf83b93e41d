"""LagTuner, a restatement of dynamic stale synchronous parallel (DSSP)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from typing_extensions import override

from raysync.core.decisions import Apply, Decision, Note, Push, Release
from raysync.core.paradigm import Paradigm
from raysync.core.roster import Roster
from raysync.errors import ConfigError

# predicted waits that differ by less are equal, so floating-point noise does not choose
TIE_S = 1e-9


@dataclass(frozen=True, slots=True)
class Forecast:
    """The controller's prediction for some extra iterations; None: an interval is unknown."""

    extra: int  # r*
    distance_s: float | None  # from p's r*-th further push to n's nearest predicted push
    wait_s: float | None  # from that push to the push of n that brings p's lead back to s_lower


# Readings without an option, under both bounds:
# * r* counts iterations. Section 3.2 also speaks of "optimal thresholds s*" (s_L + r* by the proof
#   of Theorem 2), and in the original's figure 2 p continues after *one* push of n. We follow line
#   24: after its grant p waits until its lead is back within s_lower, for r* more pushes of n.
# * Line 11 lets the server aggregate simultaneous pushes. Here each push is an update of its own.
# * Ties (Algorithm 2, line 11): the smallest r, up to TIE_S. Each worker at the largest clock is a
#   fastest one (line 18); the slowest has the smallest clock, then the smallest id.
# * With fewer than two pushes of p or n an interval is unknown, and r* = 0.
# * A held worker gets no second call of the controller (line 24).
@dataclass
class LagTuner(Paradigm):
    """Chooses a worker's staleness from `[s_lower, s_upper]`, predicting when the slowest pushes.

    Source: Kamma, "LagTuner: Adaptive Staleness Orchestration for Parameter-Server AI Training"
    (2026), Algorithms 1 and 2; where silent, the original: Zhao et al., "Dynamic Stale Synchronous
    Parallel Distributed Training for Deep Learning" (2019), Algorithm 2.

    Each push is applied at once. A worker p with credit r_p > 0 spends one and is released;
    otherwise it is released at lead <= s_lower. Beyond, if none is further ahead, the controller
    simulates the next iterations of p and the slowest worker n, and grants r* more; with r* = 0, p
    waits.

    The paper contradicts itself. `bound` has two readings:

    * `hard`: section 4.2 ("|t_i - t_j| <= s_U at all times"), for started iterations. At lead L, r
      is searched in [0, min(s_upper - s_lower, s_upper - L + 1)], a grant gives exactly r*
      releases, and predicted pushes of n are never in the past. Completed pushes can differ by
      s_upper + 1.
    * `literal`: Algorithm 1 word for word. r is searched in [0, s_upper - s_lower] at any lead; a
      grant gives r* + 1 releases (line 22 spends none), and grants repeat (line 18), so the lead
      grows without bound. Pushes of n may be predicted in the past. Only this gives the paper's
      Table 2, where a faster worker keeps its own rate.

    `predict` chooses r*, where A is the time of the latest push and I the interval:

    * `align` (the original's Algorithm 2) minimises |S_n[k] - S_p[r]| over k and r, with
      S_p[i] = A_p + i I_p and S_n[i] = A_n + I_n + i I_n, i in [0, s_upper - s_lower].
    * `wait` minimises the predicted wait for n's push that brings p's lead back to s_lower. With a
      slower n it grows with r, so r* = 0, as under SSP(s_lower).

    `interval` lasts from push to push, as in the paper, or from release to push (`busy`), without
    the worker's own waiting.
    """

    name: ClassVar[str] = "lagtuner"

    s_lower: Annotated[int, Ge(0)] = 3  # s_L, in clocks
    s_upper: Annotated[int, Ge(0), Le(1000)] = 15  # s_U, in clocks
    bound: Literal["hard", "literal"] = "hard"
    predict: Literal["align", "wait"] = "align"
    interval: Literal["push", "busy"] = "push"
    # r_p: iterations that a worker may still run without the controller
    credit: dict[str, int] = field(default_factory=dict, init=False)
    # worker -> its predicted wait, until the actual one is known
    predicted_s: dict[str, float | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.s_lower > self.s_upper:
            raise ConfigError(
                f"lagtuner: s_lower ({self.s_lower}) must not be above s_upper ({self.s_upper})."
            )

    @override
    def pushes_per_update(self, workers: int, phase: str = "") -> int:
        return 1

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        worker = push[0]
        decisions: list[Decision] = [Apply((push,))]
        if self._spends_credit(worker):
            decisions.append(Release(worker))
        elif roster.lead(worker) > self.s_lower:
            decisions += self._call_controller(roster, worker)
        return decisions + self._release_within_bound(roster, already=decisions)

    @override
    def on_leave(self, roster: Roster, worker: str) -> list[Decision]:
        self.credit.pop(worker, None)
        self.predicted_s.pop(worker, None)
        return self._release_within_bound(roster, already=[])

    @override
    def explain(self, roster: Roster, worker: str) -> str:
        return (
            f"{roster.lead(worker)} clocks ahead of the slowest ({roster.slowest_worker()}); "
            f"waits until that is {self.s_lower}, no extra iterations granted"
        )

    def _spends_credit(self, worker: str) -> bool:
        """Spend one of the worker's credit; return whether it had any."""
        credit = self.credit.pop(worker, 0)
        if credit > 1:
            self.credit[worker] = credit - 1
        return credit > 0

    def _call_controller(self, roster: Roster, worker: str) -> list[Decision]:
        """Carry out Algorithm 1, lines 18 to 23, for a worker beyond s_lower."""
        if not roster.is_fastest(worker):
            return []
        # The last grant is used up, and p did not wait after it.
        decisions: list[Decision] = [*self._note_wait(worker, 0.0)]
        slowest = roster.slowest_worker()
        assert slowest is not None, "the worker itself is a member"
        interval_s = self._interval_s(roster, worker)
        slowest_interval_s = self._interval_s(roster, slowest)
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

    def _release_within_bound(self, roster: Roster, already: list[Decision]) -> list[Decision]:
        """Release the workers whose lead is back within s_lower, and note actual waits."""
        released = {decision.worker for decision in already if isinstance(decision, Release)}
        decisions: list[Decision] = []
        for worker in roster.held_within(self.s_lower):
            if worker in released:
                continue
            pushed_at = roster.telemetry(worker).pushed_at
            actual_s = roster.now - pushed_at if pushed_at is not None else 0.0
            decisions += [*self._note_wait(worker, actual_s), Release(worker)]
        return decisions

    def _note_wait(self, worker: str, actual_s: float) -> list[Decision]:
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
        pushed_at = roster.telemetry(worker).pushed_at
        slowest_pushed_at = roster.telemetry(slowest).pushed_at
        assert pushed_at is not None, "an interval without a push"
        assert slowest_pushed_at is not None, "an interval without a push"
        lead, extra_max = roster.lead(worker), self.s_upper - self.s_lower
        next_push_at = slowest_pushed_at + slowest_interval_s  # of n
        extra_allowed = extra_max
        if self.bound == "hard":
            extra_allowed = max(0, min(extra_max, self.s_upper - lead + 1))
            next_push_at = max(next_push_at, roster.now)
        distances_s, waits_s = [], []
        for extra in range(extra_allowed + 1):
            push_at = pushed_at + extra * interval_s  # p's extra-th further push
            missing = max(0, lead + extra - self.s_lower - 1)  # pushes of n beyond its next one
            distances_s.append(_distance_s(push_at - next_push_at, slowest_interval_s, extra_max))
            waits_s.append(max(0.0, next_push_at + missing * slowest_interval_s - push_at))
        costs_s = distances_s if self.predict == "align" else waits_s
        least_s = min(costs_s)
        best = next(extra for extra, cost_s in enumerate(costs_s) if cost_s <= least_s + TIE_S)
        return Forecast(best, distances_s[best], waits_s[best])

    def _interval_s(self, roster: Roster, worker: str) -> float | None:
        row = roster.telemetry(worker)
        if row.interval_s is None:
            return None
        return row.interval_s if self.interval == "push" else row.active_s


def _distance_s(after_s: float, interval_s: float, steps_max: int) -> float:
    """Return the distance to the nearest of 0, interval_s, ..., steps_max * interval_s."""
    if interval_s <= 0:
        return abs(after_s)
    step = min(max(round(after_s / interval_s), 0), steps_max)
    return abs(after_s - step * interval_s)
