"""What two training steps before the run have found out about a module's state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModuleState:
    """The state beside trained parameters and buffers; a module without a trial has none."""

    moved: tuple[str, ...] = ()
    """The names of untrained parameters that a pass moves: they travel as buffers do."""
    own: tuple[str, ...] = ()
    """Attributes, `passes` or `encoder.memory`, that a pass changes: they belong to the worker."""
    of_task: tuple[str, ...] = ()
    """The same of the task."""
    draws_alone: bool = False
    """Whether the training set draws from a generator of its own, which no seed reaches."""
    sums: bool = False
    """Whether the loss of a batch is the sum of its samples' losses."""
    needs_gradients: bool = False
    """Whether its metrics need gradients, as a loss about the slope by the input does."""
