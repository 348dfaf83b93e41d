"""The messages of the driver to its actors: one type for each call; and the report of a step.

A message's type has its row of the table: who answers it, and what it leaves behind. Backends,
actors and transports read the row, and `programs` has what an actor does. So a new message is a
type here, and a method of its program.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
from typing_extensions import override

from raysync.core.finding import Finding
from raysync.step_fault import NO_FAULT, StepFault
from raysync.training.server.apply_plan import ApplyPlan

# A stage is the worker of a network that is cut into stages.
Kind = Literal["worker", "stage", "server", "evaluator"]


class MessageRow(NamedTuple):
    """What is known of all calls of a type."""

    to: Kind
    leaves: int = 0  # values, at most; they stay where they are until another call needs them
    # Its one value is a file: bytes. The call's answer is a list of it, with one a shard.
    is_file: bool = False
    is_push: bool = False  # its first value goes to a server, in a part a shard
    # It is part of every iteration: a transport may carry it, and lend memory for its one value.
    is_hot: bool = False


def _method(cls: str) -> str:
    words = cls.removesuffix("Call")  # then snake case: StateDictCall -> state_dict
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in words).lstrip("_")


class Message(msgspec.Struct, frozen=True, tag=_method, omit_defaults=True, gc=False):
    """A call of an actor."""

    row: ClassVar[MessageRow]

    @property
    def value_count(self) -> int:
        """How many values this very call leaves."""
        return self.row.leaves


def method_of(message: Message) -> str:
    """Return the name of a call, such as `state_dict`."""
    return str(message.__struct_config__.tag)


class StepCall(Message, frozen=True):
    """One iteration of a worker: a step, or several on successive batches.

    Takes weights, or none to continue with the present ones. Leaves the gradient, or the change by
    local steps, and answers with a `StepReport`.
    """

    row = MessageRow("worker", leaves=1, is_push=True, is_hot=True)
    batch: int  # the number of its first batch in its slot, from 0
    samples: int  # per batch
    fault: StepFault = NO_FAULT
    steps: int = 1
    # of the run, for the learning rate of local steps: at its first step, and from step to step
    progress: float = 0.0
    progress_of_step: float = 0.0


class RestoreCall(Message, frozen=True):
    """Restore the buffers that a worker had when the run was interrupted; takes a vector."""

    row = MessageRow("worker")


class WorkerStateCall(Message, frozen=True):
    """Ask for the file of a worker's state between pushes."""

    row = MessageRow("worker", leaves=1, is_file=True)
    batch: int  # the state before this batch, even if its step began meanwhile


class LoadWorkerStateCall(Message, frozen=True):
    """Restore a worker's state from its file."""

    row = MessageRow("worker")
    data: bytes


class ForwardCall(Message, frozen=True):
    """A stage's forward pass: takes new weights, if any, and an activation, if any; leaves one."""

    row = MessageRow("stage", leaves=1)
    batch: int  # in its group, from 1
    fault: StepFault = NO_FAULT


class BackwardCall(Message, frozen=True):
    """A stage's backward pass; the last stage runs the batch forward before.

    Takes new weights, if any, and the gradient by the output, or the last stage's activation, if
    any. Leaves the gradients by weights and by input; answers with a `StepReport`.
    """

    row = MessageRow("stage", leaves=2, is_push=True)
    batch: int
    fault: StepFault = NO_FAULT


class CombineCall(Message, frozen=True):
    """The first half of a shard's update: takes gradients, leaves their norm in the shard."""

    row = MessageRow("server", leaves=1)
    plan: ApplyPlan


class ApplyCall(Message, frozen=True):
    """An update.

    Takes gradients and, where delays are compensated, the weights of each; or the norms of all
    shards, after `CombineCall`. Leaves the weights if it `publishes` them, and answers with their
    version.
    """

    row = MessageRow("server", leaves=1, is_hot=True)
    plan: ApplyPlan | None = None  # None: nothing is computed
    publishes: bool = False  # whether it leaves the new weights

    @property
    @override
    def value_count(self) -> int:
        return int(self.publishes)


class PublishCall(Message, frozen=True):
    """Ask for the weights."""

    row = MessageRow("server", leaves=1, is_hot=True)
    version: int  # the server's, or the call fails
    replica: int  # the replica that pulls, or `MEAN`


class ForgetCall(Message, frozen=True):
    """A worker has left: its buffers no longer count."""

    row = MessageRow("server")
    worker: str


class StatisticsCall(Message, frozen=True):
    """Ask for a vector with the buffers of a worker's latest applied push."""

    row = MessageRow("server", leaves=1)
    worker: str


class SnapshotCall(Message, frozen=True):
    """Ask for the file of a server's whole state; takes vectors to keep for the driver in it."""

    row = MessageRow("server", leaves=1, is_file=True)
    names: list[str]  # the vectors' names
    version: int  # the server's, or the call fails


class SavedCall(Message, frozen=True):
    """Ask, once, for a vector of a snapshot."""

    row = MessageRow("server", leaves=1)
    name: str


class LoadServerStateCall(Message, frozen=True):
    """Restore a fresh server's state; takes the file of a `SnapshotCall`."""

    row = MessageRow("server")


class EvaluateCall(Message, frozen=True):
    """Takes the weights of each server; answers with metrics, by name."""

    row = MessageRow("evaluator")
    is_last: bool  # the training is over


class StateDictCall(Message, frozen=True):
    """Takes the weights of each server; answers with a model's safetensors file."""

    row = MessageRow("evaluator")


class StepReport(msgspec.Struct, frozen=True, gc=False):
    """A worker's report of a step, besides its gradient."""

    loss: float | None  # None: the worker has none
    busy_s: float  # of computing
    not_finite: Finding | None = None


MESSAGES: tuple[type[Message], ...] = tuple(Message.__subclasses__())
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(reduce(or_, MESSAGES))


def encode(message: Message) -> bytes:
    """Encode for transport between processes: bytes, which Ray does not pickle."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    message: Message = _decoder.decode(data)
    return message
