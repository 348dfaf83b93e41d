"""The details of an update that its server needs beside the gradients."""

from __future__ import annotations

from msgspec import Struct

MEAN = -1
"""The number that stands for the mean of all replicas, which is evaluated."""


class ApplyPlan(Struct, frozen=True, omit_defaults=True, gc=False):
    """The details of an Apply that its server needs, in the order of the gradients."""

    workers: list[str | None]
    """The workers that pushed; None for one that has left since, whose buffers do not count."""
    samples: list[int]
    progress: float
    """The progress of the run, or of the stage, before this update."""
    phase: str
    """The phase of the paradigm."""
    staleness: list[int]
    """Versions applied between the weights of each push and this update."""
    version: int
    """The version that this update produces: a server that missed the update before refuses it."""
    weights: list[float] = []
    """The weight of each push in the mean, where the paradigm decides it; empty: its samples. With
    `combine: sum` each push is multiplied by it. A push of weight 0 contributes nothing."""
    members: int = 1
    """The workers that take part, for what scales with their number."""
    replicas: list[int] = []
    """The replica of each push where each replica has an optimizer of its own; empty otherwise."""
    combined: bool = False
    """Whether `combine` was called before, for the norms of all shards, which are then sent in
    place of the gradients."""
