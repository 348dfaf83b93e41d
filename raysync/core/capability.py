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
    LEAVE = auto()
    """A worker leaves for a time, or for good, and the others go on."""
    WAIT_FOR_WORKERS = auto()
    """The run waits while fewer workers are there than it is to go on with."""
    CORRECT_STALENESS = auto()
    """The server corrects gradients for their delay."""
    SHARD_SERVERS = auto()
    """The parameters of the model are split evenly among several servers."""
    SEVERAL_DEVICES = auto()
    """A worker computes on several devices."""
    MICRO_BATCHES = auto()
    """A worker computes the gradient of a batch piece by piece."""
    COMPILE = auto()
    """A worker compiles what it computes."""
    WHOLE_MODEL = auto()
    """One server has the whole model, with its norm and its matrices."""
    ALL_REDUCE = auto()
    """The workers of an update exchange its gradients among themselves, without a server."""
    SHARE_LINKS = auto()
    """Workers share the links of nodes, or those between regions."""
    CHANGE_BANDWIDTH = auto()
    """Faults change the bandwidth of the workers' own links."""
    SEND_SIZES = auto()
    """What a push sends and a pull brings has a size that is given, and not the model's."""
    NETWORK_PHASES = auto()
    """The network changes when the paradigm switches."""
    EMULATE_LINKS = auto()
    """The link between a worker and its server is emulated on Ray; on the virtual clock it always
    is."""
    LOCAL_STEPS = auto()
    """A worker makes optimizer steps of its own between two pushes."""
    SAME_WEIGHTS = auto()
    """A worker computes again on the weights that it has pulled: `Release(pull=False)`."""
    REDUCED_WIRE = auto()
    """Gradients travel in another format than that of the weights."""
    SHARE_MEMORY = auto()
    """Vectors travel in memory that the processes of a node share."""
