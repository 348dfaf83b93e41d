"""Ringmaster: any paradigm, without the pushes that are too stale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge

from raysync.core.capability import Capability
from raysync.core.decisions import Decision, Drop, Push, Release
from raysync.core.roster import Roster
from raysync.errors import ConfigError
from raysync.paradigms.registry import Spec
from raysync.paradigms.wrapper import Wrapper, layers


@dataclass
class Ringmaster(Wrapper):
    """Another paradigm that sees no push that is more than `staleness` versions old; the worker of
    such a push begins anew on the newest weights.

    Source: Maranjyan, Tyurin and Richtarik, "Ringmaster ASGD" (arXiv 2501.16168, 2025). There a
        gradient of delay tau is applied if tau < R and else ignored, and its worker restarts at the
        current model: R = staleness + 1.
    The paradigm: the inner paradigm handles a push that arrives `staleness` or fewer updates after
        its weights, and every other event. An older push is dropped, and its worker is released.
    Conventions:
        * The delay is that at the arrival. A push that the inner paradigm keeps for a later update
          may be older when it is applied.
        * A push on the published weights is never dropped: its worker could do no better. (Under
          `hybrid` with `snapshot: global` these may be older than `staleness`, and then no push
          would ever be accepted.)
    The inner paradigm does not see a dropped push, nor does the lead of its worker count it: to the
    inner paradigm, that step only takes longer, and the worker is released once more at the lead at
    which it was released before.
        * So what the inner paradigm promises holds as it does alone: its bounds on leads, and that
          no setting hangs. While nobody makes updates the next push is on the published weights,
          and is accepted.
        * Releases after a drop always pull; `hybrid` counts none of them for its pull_interval, and
          `lagtuner` none for the credit.
        * `bsp` has no stale pushes, so nothing changes; of `k-sync` and its siblings this drops
          what they would drop.
    Deviation: the source's second variant stops a stale computation under way; it is not
        implemented, since a step cannot be stopped here.
    """

    name: ClassVar[str] = "ringmaster"

    paradigm: Spec = "asp"
    """The inner paradigm: its name, or a mapping with `name` and its parameters."""
    staleness: Annotated[int, Ge(0)] = 8
    """The bound on the age of a push, in model versions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(each.name == "sync-switch" for each in layers(self.inner)):
            raise ConfigError(
                "ringmaster: paradigm: not around sync-switch, whose phases and straggler"
                " detector would not see what it drops; put ringmaster inside: first: {name:"
                " ringmaster, ...}, or then."
            )
        demanded = {demand for demand, _ in self.inner.demands()}
        self._sets_sizes = Capability.BATCH_SIZE in demanded
        self._sets_steps = Capability.LOCAL_STEPS in demanded

    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        base = roster.buffered[push].base
        behind = roster.version - base
        if behind <= self.staleness or base == roster.published:
            return super().on_push(roster, push)
        why = (
            f"stale: {behind} update{'s' * (behind > 1)} since its weights; the bound is"
            f" {self.staleness}"
        )
        # The same iteration once more: the inner paradigm may have chosen its size and its steps.
        pushed = roster.buffered[push]
        again = Release(
            push[0],
            batch_size=pushed.samples // pushed.steps if self._sets_sizes else None,
            steps=pushed.steps if self._sets_steps else None,
        )
        return [Drop(push, why, reason="stale"), again]
