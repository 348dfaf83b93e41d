"""The messages of the driver to its actors: one type for each call; and the report of a step."""

from __future__ import annotations

from typing import Any

import msgspec

from raysync.core.finding import Finding
from raysync.step_fault import NO_FAULT, StepFault
from raysync.training.server.apply_plan import ApplyPlan

#                     to          takes                       leaves
# StepCall            worker      weights, or none            the gradient         -> StepReport
# RestoreCall         worker      a vector with its buffers
# WorkerStateCall     worker                                  the file of its state
# LoadWorkerStateCall worker
# ForwardCall         stage       [weights], [activation]     the activation
# BackwardCall        stage       [weights], [gradient]       the gradients by weights and input
# CombineCall         a shard     gradients                   the norm of the shard
# ApplyCall           server      gradients                   the weights, if they are published
# PublishCall         server                                  the weights
# ForgetCall          server
# StatisticsCall      server                                  a vector with its buffers
# SnapshotCall        server      vectors to keep             the file of its state
# SavedCall           server                                  a kept vector
# EvaluateCall        evaluator   weights of each server                           -> metrics
# StateDictCall       evaluator   weights of each server                           -> a model's file


def _method(cls: str) -> str:
    words = cls.removesuffix("Call")  # then snake case: StateDictCall -> state_dict
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in words).lstrip("_")


class Message(msgspec.Struct, frozen=True, tag=_method, omit_defaults=True, gc=False):
    """A call of the actor's method that has the name of its tag."""


def method_of(message: Message) -> str:
    return str(message.__struct_config__.tag)


class StepCall(Message, frozen=True):
    """One iteration of a worker: a step, or several on successive batches."""

    batch: int  # the number of its first batch in its slot, from 0
    samples: int  # per batch
    fault: StepFault = NO_FAULT
    steps: int = 1
    # of the run, for the learning rate of local steps: at its first step, and from step to step
    progress: float = 0.0
    progress_of_step: float = 0.0


class RestoreCall(Message, frozen=True):
    """Restore the buffers that a worker had when the run was interrupted."""


class WorkerStateCall(Message, frozen=True):
    """Ask for the file of a worker's state between pushes."""

    batch: int  # the state before this batch, even if its step began meanwhile


class LoadWorkerStateCall(Message, frozen=True):
    """Restore a worker's state from its file."""

    data: bytes


class ForwardCall(Message, frozen=True):
    batch: int  # in its group, from 1
    fault: StepFault = NO_FAULT


class BackwardCall(Message, frozen=True):
    """The last stage runs the batch forward before."""

    batch: int
    fault: StepFault = NO_FAULT


class CombineCall(Message, frozen=True):
    """The first half of an update: shards exchange the norms of gradients."""

    plan: ApplyPlan


class ApplyCall(Message, frozen=True):
    plan: ApplyPlan | None = None  # None: nothing is computed
    publishes: bool = False  # whether it leaves the new weights


class PublishCall(Message, frozen=True):
    version: int  # the server's, or the call fails
    replica: int  # the replica that pulls, or `MEAN`


class ForgetCall(Message, frozen=True):
    """A worker has left: its buffers no longer count."""

    worker: str


class StatisticsCall(Message, frozen=True):
    """Ask for the buffers of a worker's latest applied push."""

    worker: str


class SnapshotCall(Message, frozen=True):
    """Ask for a server's whole state, with vectors to keep for the driver."""

    names: list[str]  # the vectors' names
    version: int  # the server's, or the call fails


class SavedCall(Message, frozen=True):
    """Ask, once, for a vector of a snapshot."""

    name: str


class EvaluateCall(Message, frozen=True):
    is_last: bool  # the training is over


class StateDictCall(Message, frozen=True):
    """Ask for a model with published weights as a safetensors file."""


class StepReport(msgspec.Struct, frozen=True, gc=False):
    """A worker's report of a step, besides its gradient."""

    loss: float | None  # None: the worker has none
    busy_s: float  # of computing
    not_finite: Finding | None = None


_AnyMessage = (
    StepCall | RestoreCall | WorkerStateCall | LoadWorkerStateCall | ForwardCall | BackwardCall
    | CombineCall | ApplyCall | PublishCall | ForgetCall | StatisticsCall | SnapshotCall | SavedCall
    | EvaluateCall | StateDictCall
)  # fmt: skip
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_AnyMessage)


def encode(message: Message) -> bytes:
    """Encode for transport between processes: bytes, which Ray does not pickle."""
    return _encoder.encode(message)


def decode(data: bytes) -> Message:
    message: Message = _decoder.decode(data)
    return message
