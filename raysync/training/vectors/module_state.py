"""What two training steps before the run have found out about a module's state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModuleState:
    """The state beside trained parameters and buffers; a module without a trial has none."""

    # the names of untrained parameters that a pass moves: they travel as buffers do
    moved: tuple[str, ...] = ()
    # attributes, `passes` or `encoder.memory`, that a pass changes: they belong to the worker
    own: tuple[str, ...] = ()
    of_task: tuple[str, ...] = ()  # the same of the task
    # whether the training set draws from a generator of its own, which no seed reaches
    draws_alone: bool = False
    sums: bool = False  # whether the loss of a batch is the sum of its samples' losses
    # whether its metrics need gradients, as a loss about the slope by the input does
    needs_gradients: bool = False
