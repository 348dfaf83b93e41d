"""The demands of experiments and paradigms that only some topologies can meet.

Each demand names its setting, so a run that would ignore a setting is refused beforehand.
"""

from __future__ import annotations

from enum import Enum, auto

Demand = tuple["Capability", str]  # A demand on a topology, and the setting that makes it.


class Capability(Enum):
    """A demand that a topology may refuse."""

    BATCH_SIZE = auto()  # `Release(batch_size=...)`, or a worker group with a batch size of its own
    LEAVE = auto()  # a worker leaves, for a time or for good, and the others continue
    WAIT_FOR_WORKERS = auto()  # the run pauses while it has fewer workers than its minimum
    CORRECT_STALENESS = auto()  # the server corrects gradients for their delay
    SHARD_SERVERS = auto()  # several servers, each with an equal part of the parameters
    SEVERAL_DEVICES = auto()  # a worker computes on several devices
    MICRO_BATCHES = auto()  # a worker computes the gradient of a batch piece by piece
    COMPILE = auto()  # a worker compiles its model
    WHOLE_MODEL = auto()  # one server has the whole model, for its norm and its matrices
    ALL_REDUCE = auto()  # workers exchange gradients among themselves, without a server
    SHARE_LINKS = auto()  # workers share the links of nodes, or between regions
    CHANGE_BANDWIDTH = auto()  # faults change the bandwidth of the workers' own links
    SEND_SIZES = auto()  # pushes and pulls have a given size instead of the model's
    NETWORK_PHASES = auto()  # the network changes when the paradigm switches
    EMULATE_LINKS = auto()  # links to servers are emulated on Ray (in virtual time always)
    LOCAL_STEPS = auto()  # a worker makes several optimizer steps between two pushes
    SAME_WEIGHTS = auto()  # a worker continues on its last pull: `Release(pull=False)`
    REDUCED_WIRE = auto()  # gradients travel in a smaller format than weights
    SUM_GRADIENTS = auto()  # `Apply.weights` are factors, also of a single push: `combine: sum`
    SHARE_MEMORY = auto()  # vectors travel in memory that the processes of a node share
