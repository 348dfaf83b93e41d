"""Ringmaster: any paradigm, without pushes that are too stale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Ge
from typing_extensions import override

from raysync.core.capability import Capability
from raysync.core.decisions import Decision, Drop, Push, Release
from raysync.core.roster import Roster
from raysync.errors import ConfigError
from raysync.paradigms.registry import Spec
from raysync.paradigms.wrapper import Wrapper, layers


@dataclass
class Ringmaster(Wrapper):
    """Another paradigm without pushes more than `staleness` versions old.

    Source: Maranjyan, Tyurin and Richtarik, "Ringmaster ASGD" (arXiv 2501.16168, 2025): a gradient
    of delay tau is applied if tau < R, or else ignored, and its worker restarts on the newest
    model. R = staleness + 1. Deviation: no running step is stopped (the source's second variant).

    The inner paradigm does not see a dropped push, nor does its worker's lead count it: the step
    only takes longer. So its bounds on leads hold, and no setting hangs: without updates the next
    push is on the published weights. Releases after a drop always pull; `hybrid` does not count
    them for its pull_interval, nor `lagtuner` for the credit. `bsp` has no stale pushes; `k-sync`
    and its siblings would drop the same ones.
    """

    name: ClassVar[str] = "ringmaster"

    paradigm: Spec = "asp"
    staleness: Annotated[int, Ge(0)] = 8  # in model versions

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(layer.name == "sync-switch" for layer in layers(self.inner)):
            raise ConfigError(
                "ringmaster: paradigm: not around sync-switch, whose phases and straggler"
                " detector would not see what it drops; put ringmaster inside: first: {name:"
                " ringmaster, ...}, or then."
            )
        demanded = {demand for demand, _ in self.inner.demands()}
        self._sets_sizes = Capability.BATCH_SIZE in demanded
        self._sets_steps = Capability.LOCAL_STEPS in demanded

    @override
    def on_push(self, roster: Roster, push: Push) -> list[Decision]:
        base = roster.buffered[push].base
        # This is the delay at arrival: a push that the inner paradigm buffers may be older when
        # applied. A push on the published weights is never dropped: its worker could do no better.
        # (Under `hybrid` with `snapshot: global` these may be older than `staleness`: no push would
        # be accepted.)
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
