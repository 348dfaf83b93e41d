"""The details of an update that its server needs beside the gradients."""

from __future__ import annotations

from msgspec import Struct

MEAN = -1  # a replica's number for the mean of all replicas, which is evaluated


class ApplyPlan(Struct, frozen=True, omit_defaults=True, gc=False):
    """The details of an Apply, in the order of the gradients."""

    workers: list[str | None]  # None: it has left since, so its buffers do not count
    samples: list[int]
    progress: float  # of the run or stage, before this update
    phase: str
    staleness: list[int]  # versions between each push's weights and this update
    version: int  # after this update; a server that missed the one before refuses it
    # The paradigm's weights in the mean (`combine: sum`: factors); empty: samples. 0 excludes a
    # push.
    weights: list[float] = []
    members: int = 1  # workers that take part, for factors that depend on it
    # the replica of each push if replicas have optimizers of their own; else empty
    replicas: list[int] = []
    # `combine` was called before, and the message has the norms of all shards, not gradients
    combined: bool = False
