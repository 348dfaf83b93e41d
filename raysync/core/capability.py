"""The demands that only some topologies can carry out.

A paradigm states what it demands of a topology (`Paradigm.demands`), an experiment does so by its
settings, and a topology states what it refuses, and why. So nothing is silently ignored: what
cannot be carried out is refused before the run, with the name of the setting that asks for it.
"""

from __future__ import annotations

from enum import Enum, auto

Demand = tuple["Capability", str]
"""A demand on a topology, and the setting that makes it."""


class Capability(Enum):
    """A demand that a topology may refuse."""

    BATCH_SIZE = auto()
    """An iteration whose batch size is not the experiment's: `Release(batch_size=...)`, or that of
    a group of workers."""
    LOSE_WORKERS = auto()
    """The run continues when a worker is lost, and a new life of its slot may join."""
    TAKE_CHECKPOINTS = auto()
    """The state of a run on Ray is written down between two events, and it goes on from there; on
    the virtual clock it always can."""
    CORRECT_STALENESS = auto()
    """The server corrects gradients for their delay."""
    SHARD_SERVERS = auto()
    """The parameters of the model are split evenly among several servers."""
    SEVERAL_DEVICES = auto()
    """A worker computes on several devices."""
    MICRO_BATCHES = auto()
    """A worker computes the gradient of a batch piece by piece."""
    PRECISION = auto()
    """A worker computes in a precision other than float32."""
    WHOLE_NORM = auto()
    """The server knows the norm of the whole model."""
    ALL_REDUCE = auto()
    """The workers of an update exchange its gradients among themselves, without a server."""
    SHARE_HOSTS = auto()
    """Workers share the cores of a host."""
    EMULATE_LINKS = auto()
    """The link between a worker and its server is emulated on Ray; on the virtual clock it always
    is."""
