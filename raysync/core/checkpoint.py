"""A checkpoint: a consistent snapshot of a run between two events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state from which a run resumes. (Randomness has no state: it is hashed from the seed.)"""

    number: int  # from 1, as in the journal's `Checkpointed`
    at: float  # seconds since the run began
    state: Mapping[str, Any]  # the driver's, JSON-native: machine, marks, faults, in-flight steps
    # server id -> the safetensors file of each shard: weights, optimizer, and the gradients and
    # older weights that the driver still needs
    servers: Mapping[str, Sequence[bytes]]
    # worker -> the safetensors file of its own state: its optimizer, and its codec's residual
    worker_files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def workers(self) -> Mapping[str, str]:
        """The worker of each slot when the run resumes."""
        workers: Mapping[str, str] = self.state["workers"]
        return workers
