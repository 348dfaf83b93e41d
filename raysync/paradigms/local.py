"""Local: any paradigm, whose workers make several optimizer steps of their own before each push."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Le
from msgspec.structs import replace

from raysync.core.capability import Capability, Demand
from raysync.core.decisions import Decision, Push, Release
from raysync.core.legality import location
from raysync.core.paradigm import AnyParadigm, Paradigm
from raysync.core.roster import Roster
from raysync.errors import ConfigError, IllegalDecision
from raysync.paradigms.measuring import Measuring, slot_of, smooth
from raysync.paradigms.wrapper import layers

SMOOTHING = 0.3
"""The weight of the latest iteration in the smoothed seconds of a step."""
ROUNDING = 1e-9
"""A number of steps that falls short of a whole one by less counts as it."""

Steps = Annotated[int, Ge(1), Le(1_000_000)]


@dataclass
class StepsPerPush(Measuring):
    """Another paradigm whose workers make several local steps before each push.

    Source: local SGD (Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019); DiLoCo
        (Douillard et al. 2023, arXiv 2311.08105); dynamic local updates (DyLU): Liu et al.,
        "Asynchronous Local-SGD Training for Language Modeling" (2024, arXiv 2401.09135).
    The paradigm: the inner paradigm decides everything but `Release.steps`, which is H = `steps`
        (`by: fixed`), or suits the speed v_i of the worker, in steps per second of computing
        (`by: speed`):

            steps_i = max(floor, floor(H v_i / max_j v_j))

        so that the fastest makes H steps, and all take about equally long.
    Around BSP that is local SGD, or DiLoCo, by the optimizers of `local` and `update`; around ASP
    asynchronous local SGD. `sync-switch` with `then: {name: local, ...}` is post-local SGD.
    Conventions:
        * A worker that was not measured yet makes H steps, as one does whose steps take no time; a
          new life of a slot has the speed of the one before.
        * Who is the fastest of the members is asked when a worker is measured, when a member joins
          or leaves, and after as many pushes as there are members.
    Deviations: the source measures the speeds before the run. Here they are an exponential average
        of the seconds of a step, so that workers may change. Its program has a floor of 5 steps.
    """

    name: ClassVar[str] = "local"

    steps: Steps = 8
    """H, the steps of an iteration; with `by: speed`, of the fastest worker."""
    by: Literal["fixed", "speed"] = "fixed"
    """Whether all make as many steps, or each as many as suit its speed."""
    floor: Steps = 1
    """The least steps of an iteration, with `by: speed`."""
    step_s: dict[str, float] = field(default_factory=dict, init=False)
    """Slot -> smoothed seconds of computing of a step."""
    fastest: str = field(default="", init=False)
    """The slot of the fastest member; "" while none is measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        named = [what for demand, what in self.inner.demands() if demand is Capability.LOCAL_STEPS]
        if named:
            raise ConfigError(
                f"{self.name}: paradigm: {self.inner.name} sets local steps itself ({named[0]})."
            )
        if self.floor > self.steps:
            raise ConfigError(
                f"{self.name}: floor: {self.floor} steps; allowed: 1 to {self.steps}, which is"
                " `steps`."
            )

    def demands(self) -> Iterator[Demand]:
        yield Capability.LOCAL_STEPS, f"steps: {self.steps}"
        yield from self.inner.demands()

    def measure(self, roster: Roster, push: Push) -> None:
        slot, busy_s = slot_of(push[0]), roster.telemetry(push[0]).busy_s
        if self.by == "fixed" or busy_s <= 0:
            return
        smooth(self.step_s, slot, busy_s / roster.buffered[push].steps, SMOOTHING)
        if not self.fastest or self.step_s[slot] < self.step_s[self.fastest]:
            self.fastest = slot

    def adapted(self, roster: Roster, decided: list[Decision]) -> list[Decision]:
        """Return the decisions with the steps of their releases."""
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


def steps_per_push(paradigm: AnyParadigm, own: int) -> int:
    """Return the most steps of an iteration: those that a layer of the paradigm names, or those of
    the experiment.
    """
    if isinstance(paradigm, Paradigm):
        for layer in layers(paradigm):
            if isinstance(layer, StepsPerPush):
                return layer.steps
    return own
