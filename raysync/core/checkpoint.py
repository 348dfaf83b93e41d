"""A checkpoint: a consistent cut of a run, between two events, from which the run can go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All that a run needs to go on.

    There is no state of random generators: everything that is random is hashed from the seed.
    """

    number: int
    """Its number in the run, from 1: that of its line in the journal (`Checkpointed`)."""
    at: float
    """Seconds since the run began."""
    state: Mapping[str, Any]
    """The driver's state, JSON-native: machine, marks, faults, and what is on its way."""
    servers: Mapping[str, Sequence[bytes]]
    """Id of a server -> the contents of the safetensors file of each of its shards: weights,
    optimizer, and their parts of the gradients and weights that the driver still needs."""
    kept: Mapping[str, bytes] = field(default_factory=dict)
    """Worker -> the contents of the safetensors file of what it keeps from push to push: the state
    of its optimizer, and what the codec of its pushes has lost."""

    @property
    def workers(self) -> Mapping[str, str]:
        """Slot -> the id of the worker that fills it when the run is resumed."""
        workers: Mapping[str, str] = self.state["workers"]
        return workers
