"""What a server is told of an update beside the gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MEAN = -1
"""In place of a replica: the mean of all of them, which is what is evaluated."""


@dataclass(frozen=True, slots=True)
class ApplyPlan:
    """What the server must know of an Apply, in the order of the gradients.

    The fields travel as a list of strings and numbers, which Ray need not pickle.
    """

    workers: list[str | None]
    """The workers that pushed; None for one that has left since."""
    samples: list[int]
    progress: float
    """The progress of the run before this update; of a stage, that of the stage."""
    phase: str
    """The phase of the paradigm."""
    staleness: list[int]
    """Versions applied between the weights of each push and this update."""
    version: int
    """The version that this update makes: a server that has missed the one before refuses it."""
    replicas: list[int] = field(default_factory=list)
    """The replica of each push, where each has an optimizer of its own; else empty."""
    combined: bool = False
    """Whether `combine` was called before, for the norms of all shards, which then come in place
    of the gradients."""

    def fields(self) -> list[Any]:
        """Return the fields as they travel."""
        return [
            self.workers,
            self.samples,
            self.progress,
            self.phase,
            self.staleness,
            self.version,
            self.replicas,
            self.combined,
        ]
