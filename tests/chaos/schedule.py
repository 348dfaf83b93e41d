"""When which process of a run is struck, and how: drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from raysync.errors import ConfigError, unknown_name
from raysync.randomness import uniform

Candidate = TypeVar("Candidate")

PROCESSES = ("worker", "server", "evaluator", "controller", "driver")
"""The processes that can be struck; a shard is a server. The driver is the command itself, with all
processes below it."""
TARGETS = (*PROCESSES, "disk", "node", "store")
"""What can be struck. Whatever the signal, the disk of the record is full until the command has
ended, a node is killed, and the object stores of all nodes are full for some seconds."""
SIGNALS = ("kill", "stop")
"""SIGKILL and SIGSTOP: a process dies, or freezes."""


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
        """Return the one that is struck."""
        return candidates[int(self.choice * len(candidates))]


def names_in(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a list with commas.

    Raises:
        ConfigError: one is unknown, or there is none.
    """
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ConfigError(f"{option} {text!r}: name at least one of {', '.join(allowed)}.")
    for name in names:
        if name not in allowed:
            raise unknown_name("name", name, allowed, where=option, listed=allowed)
    return names


def schedule(
    targets: Sequence[str], signals: Sequence[str], kills: int, every_s: float, seed: int
) -> list[Strike]:
    """Draw the strikes of a run: gaps from half of `every_s` to one and a half of it.

    Raises:
        ConfigError: there would be no strike, or no gap.
    """
    if kills < 1:
        raise ConfigError(f"--kills {kills}: at least 1 is needed.")
    if not every_s > 0:
        raise ConfigError(f"--every {every_s:g}: seconds above 0 are needed.")
    return [
        Strike(
            every_s * (0.5 + uniform(seed, "chaos", "gap", number)),
            targets[int(uniform(seed, "chaos", "target", number) * len(targets))],
            signals[int(uniform(seed, "chaos", "signal", number) * len(signals))],
            uniform(seed, "chaos", "choice", number),
        )
        for number in range(kills)
    ]
