"""Local: any paradigm, whose workers make several optimizer steps of their own before each push."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from msgspec.structs import replace
from typing_extensions import override

from raysync.core.capability import Capability, Demand
from raysync.core.decisions import Decision, Push, Release
from raysync.core.legality import location
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.core.roster import Roster
from raysync.errors import ConfigError, IllegalDecision
from raysync.paradigms.measuring import Measuring, slot_of, smooth
from raysync.paradigms.wrapper import layers

SMOOTHING = 0.3  # the weight of the latest iteration in a step's smoothed seconds
ROUNDING = 1e-9  # a number of steps so close below a whole one counts as it

Steps = Annotated[int, Ge(1), Le(1_000_000)]


# Deviations: speeds are smoothed during the run, so that workers may change, instead of measured
# before. The source's program has a floor of 5 steps.
@dataclass
class StepsPerPush(Measuring):
    """Another paradigm whose workers make several local steps before each push.

    Source: local SGD (Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019); DiLoCo
    (Douillard et al. 2023, arXiv 2311.08105); dynamic local updates (DyLU): Liu et al.,
    "Asynchronous Local-SGD Training for Language Modeling" (2024, arXiv 2401.09135).

    The inner paradigm decides everything but `Release.steps`: H = `steps` (`by: fixed`), or for a
    worker of v_i steps per second (`by: speed`)

        steps_i = max(floor, floor(H v_i / max_j v_j))

    so that all take about equally long. An unmeasured worker makes H steps. `sync-switch` with
    `then: {name: local, ...}` is post-local SGD.
    """

    name: ClassVar[str] = "local"

    steps: Steps = 8  # H, per iteration; with `by: speed`, the steps of the fastest worker
    by: Literal["fixed", "speed"] = "fixed"
    floor: Steps = 1  # the least steps, with `by: speed`
    # slot -> smoothed seconds of a step; a new life inherits them
    step_s: dict[str, float] = field(default_factory=dict, init=False)
    # the slot of the fastest member; "" while none is measured
    fastest: str = field(default="", init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        demands = self.inner.demands()
        if settings := [setting for demand, setting in demands if demand is Capability.LOCAL_STEPS]:
            raise ConfigError(
                f"{self.name}: paradigm: {self.inner.name} sets local steps itself ({settings[0]})."
            )
        if self.floor > self.steps:
            raise ConfigError(
                f"{self.name}: floor: {self.floor} steps; allowed: 1 to {self.steps}, which is"
                " `steps`."
            )

    @override
    def demands(self) -> Iterator[Demand]:
        yield Capability.LOCAL_STEPS, f"steps: {self.steps}"
        yield from self.inner.demands()

    @override
    def measure(self, roster: Roster, push: Push) -> None:
        slot, busy_s = slot_of(push[0]), roster.telemetry(push[0]).busy_s
        if self.by == "fixed" or busy_s <= 0:
            return
        smooth(self.step_s, slot, busy_s / roster.buffered[push].steps, SMOOTHING)
        if not self.fastest or self.step_s[slot] < self.step_s[self.fastest]:
            self.fastest = slot

    @override
    def adapt(self, roster: Roster, decided: list[Decision]) -> list[Decision]:
        return [
            self._with_steps(roster, decision) if isinstance(decision, Release) else decision
            for decision in decided
        ]

    def _with_steps(self, roster: Roster, release: Release) -> Release:
        if release.steps is not None:
            raise IllegalDecision(
                f"{location(self.inner, 'on_push')} releases {release.worker!r} with"
                f" steps={release.steps}, but {self.name} sets the steps."
            )
        if self.step_s and self.is_time_to_compare(roster):
            self._find_fastest(roster)
        return replace(release, steps=self._steps_of(slot_of(release.worker)))

    def _find_fastest(self, roster: Roster) -> None:
        self.note_comparison(roster)
        measured = (slot for slot in map(slot_of, roster.members) if slot in self.step_s)
        self.fastest = min(measured, key=self.step_s.__getitem__, default="")

    def _steps_of(self, slot: str) -> int:
        if slot not in self.step_s:
            return self.steps
        share = self.step_s[self.fastest] / self.step_s[slot]
        return max(self.floor, min(self.steps, int(self.steps * share + ROUNDING)))


def steps_per_push(paradigm: AnyParadigm, default: int) -> int:
    """Return the most steps of an iteration: those of `local`, if the paradigm has such a layer."""
    if isinstance(paradigm, Paradigm):
        for layer in layers(paradigm):
            if isinstance(layer, StepsPerPush):
                return layer.steps
    return default
