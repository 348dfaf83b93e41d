"""The messages of the driver to its actors: one type for each call; and the report of a step.

                    to          takes                       leaves
StepCall            worker      weights, or none            the gradient         -> StepReport
RestoreCall         worker      a vector with its buffers
WorkerStateCall     worker                                  the file of what it keeps
LoadWorkerStateCall worker
ForwardCall         stage       [weights], [activation]     the activation
BackwardCall        stage       [weights], [gradient]       the gradients by weights and input
CombineCall         a shard     gradients                   the norm of the shard
ApplyCall           server      gradients                   the weights, if they are published
PublishCall         server                                  the weights
ForgetCall          server
StatisticsCall      server                                  a vector with its buffers
SnapshotCall        server      vectors to keep             the file of its state
SavedCall           server                                  a vector that it kept
EvaluateCall        evaluator   weights of each server                           -> metrics
StateDictCall       evaluator   weights of each server                           -> a model's file
"""

from __future__ import annotations

from typing import Any

import msgspec

from raysync.core.finding import Finding
from raysync.step_fault import NO_FAULT, StepFault
from raysync.training.server.apply_plan import ApplyPlan


def _method(cls: str) -> str:
    """Return the name of a message without `Call`, in snake case."""
    words = cls.removesuffix("Call")
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in words).lstrip("_")


class Message(msgspec.Struct, frozen=True, tag=_method, omit_defaults=True, gc=False):
    """A call of an actor, whose method has the name of its tag."""


def method_of(message: Message) -> str:
    """Return the name of the method that a message calls: `StateDictCall` -> `state_dict`."""
    return str(message.__struct_config__.tag)


class StepCall(Message, frozen=True):
    """One iteration of a worker: a step, or several on batches that follow one another."""

    batch: int
    """The number of its first batch among those of its slot, from 0."""
    samples: int
    """The size of a batch."""
    fault: StepFault = NO_FAULT
    steps: int = 1
    progress: float = 0.0
    """The progress of the run, by which the learning rate of local steps is set."""


class RestoreCall(Message, frozen=True):
    """The buffers that a worker had when the run was interrupted."""


class WorkerStateCall(Message, frozen=True):
    """The file of what a worker keeps between pushes."""

    batch: int
    """The batch before which it had this state: if a step began with it meanwhile, from before
    that."""


class LoadWorkerStateCall(Message, frozen=True):
    """What a worker kept when the run was interrupted."""

    data: bytes
    """The file."""


class ForwardCall(Message, frozen=True):
    """The forward pass of a batch through a stage."""

    batch: int
    """Its number among the batches of the group, from 1."""
    fault: StepFault = NO_FAULT


class BackwardCall(Message, frozen=True):
    """The backward pass of a batch through a stage; the last stage runs it forward before."""

    batch: int
    fault: StepFault = NO_FAULT


class CombineCall(Message, frozen=True):
    """The first half of an update, where the shards tell each other the norms of gradients."""

    plan: ApplyPlan


class ApplyCall(Message, frozen=True):
    """An update."""

    plan: ApplyPlan | None = None
    """None: nothing is computed."""
    publishes: bool = False
    """Whether it leaves the weights that it makes."""


class PublishCall(Message, frozen=True):
    """The weights as they are."""

    version: int
    """The version that they must have."""
    replica: int
    """The replica that pulls them, or `MEAN`."""


class ForgetCall(Message, frozen=True):
    """A worker has left, and its buffers no longer count."""

    worker: str


class StatisticsCall(Message, frozen=True):
    """The buffers of a worker's latest push that was applied."""

    worker: str


class SnapshotCall(Message, frozen=True):
    """The whole state of a server, with what it is to keep for the driver."""

    names: list[str]
    """The names of the vectors that come with it."""
    version: int
    """The version that it must have."""


class SavedCall(Message, frozen=True):
    """What was kept with a snapshot under a name; asked for once."""

    name: str


class EvaluateCall(Message, frozen=True):
    """The metrics of published weights."""

    is_last: bool
    """Whether the training is over."""


class StateDictCall(Message, frozen=True):
    """A model with published weights, as the contents of a safetensors file."""


class StepReport(msgspec.Struct, frozen=True, gc=False):
    """What a worker reports of a step besides its gradient."""

    loss: float | None
    """None: the worker has none."""
    busy_s: float
    """The seconds of computing."""
    not_finite: Finding | None = None
    """What was not finite, if anything was: see `training.worker.not_finite`."""


_Any = (
    StepCall | RestoreCall | WorkerStateCall | LoadWorkerStateCall | ForwardCall | BackwardCall
    | CombineCall | ApplyCall | PublishCall | ForgetCall | StatisticsCall | SnapshotCall | SavedCall
    | EvaluateCall | StateDictCall
)  # fmt: skip
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_Any)


def encode(message: Message) -> bytes:
    """Return a message as it travels between processes: bytes, which Ray does not pickle."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    """Return the message that was encoded."""
    message: Message = _decoder.decode(data)
    return message
