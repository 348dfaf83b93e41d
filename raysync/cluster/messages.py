"""What controller, server and worker tell each other beside tensors.

The fields travel as lists of strings and numbers, which Ray need not pickle.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """What the server must know of an Apply beside the gradients, in their order."""

    workers: list[str | None]
    """Who pushed; None for one that has left since."""
    samples: list[int]
    progress: float
    """Of the run before this update."""
    phase: str
    """Of the paradigm."""
    staleness: list[int]
    """Versions applied between the weights of each push and this update."""
    version: int
    """The version that this update makes: a server that has missed the one before refuses it."""
    combined: bool = False
    """Whether `combine` was called before, for the norms of all shards, which then come in place of the gradients."""

    def fields(self) -> list[Any]:
        """As it travels."""
        return [self.workers, self.samples, self.progress, self.phase, self.staleness, self.version,
                self.combined]


@dataclass(frozen=True, slots=True)
class StepReport:
    """What the controller learns of a step."""

    loss: float
    busy_s: float
    """Seconds of computing, the emulated part included."""

    def fields(self) -> list[float]:
        """As it travels."""
        return [self.loss, self.busy_s]
