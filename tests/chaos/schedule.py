"""When which process of a run is struck, and how: drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from raysync.randomness import uniform

Candidate = TypeVar("Candidate")

PROCESSES = ("worker", "server", "evaluator", "controller", "driver")
"""What can be struck; the driver is the command with all processes below it."""
TARGETS = (*PROCESSES, "node")
SIGNALS = ("kill", "stop")
"""SIGKILL and SIGSTOP: a process dies, or freezes. Drivers and nodes are killed."""


@dataclass(frozen=True, slots=True)
class Strike:
    """One planned fault."""

    after_s: float
    """Seconds since the strike before, or since the run has its first checkpoint."""
    target: str
    signal: str
    choice: float
    """Which process is struck where there are several: a share of 1 of them."""

    def one_of(self, candidates: Sequence[Candidate]) -> Candidate:
        return candidates[int(self.choice * len(candidates))]


def schedule(
    targets: Sequence[str], signals: Sequence[str], kills: int, every_s: float, seed: int
) -> list[Strike]:
    """Draw the strikes of a run: gaps from half of `every_s` to one and a half of it."""

    def draw(what: str, number: int) -> float:
        return uniform(seed, "chaos", what, number)

    return [
        Strike(
            every_s * (0.5 + draw("gap", number)),
            targets[int(draw("target", number) * len(targets))],
            signals[int(draw("signal", number) * len(signals))],
            draw("choice", number),
        )
        for number in range(kills)
    ]
