"""The actors of a run in virtual time: costs and computations; `engine.messages` has a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raysync.config import Experiment, WorkerGroup
from raysync.emulation.step_time import StepTime
from raysync.engine.messages import (
    ApplyCall,
    EvaluateCall,
    ForgetCall,
    LoadWorkerStateCall,
    Message,
    PublishCall,
    RestoreCall,
    SavedCall,
    SnapshotCall,
    StatisticsCall,
    StepCall,
    StepReport,
    WorkerStateCall,
)
from raysync.step_fault import NO_FAULT
from raysync.virtual.all_reduce import AllReduce
from raysync.virtual.virtual_backend import Cost

if TYPE_CHECKING:  # a run that only takes time needs no torch
    from torch import Tensor

    from raysync.decoupled.published_model import PublishedModel
    from raysync.training.files.state_file import State
    from raysync.training.server.model_server import ModelServer
    from raysync.virtual.trainer import Trainer

NO_COST: Cost = (0.0, 0.0, NO_FAULT, NO_FAULT, None)
AT_ONCE: Cost = (0.0, 0.0, None, NO_FAULT, None)  # a checkpoint's: not even inputs take time
Computed = tuple[Sequence[Any], Any]  # the values of a call, and its answer


class WorkerActor:
    """A worker with the whole model, on the device that its group describes."""

    def __init__(
        self, slot: str, group: WorkerGroup, experiment: Experiment, trainer: Trainer | None
    ) -> None:
        self.site = slot
        self._trainer = trainer
        batch_size = group.batch_size or experiment.batch_size
        self._step_time = StepTime(group, experiment.seed, slot, batch_size)
        self._weights: Tensor | None = None  # as pulled, or as changed by local steps
        self._worker = None if trainer is None else trainer.worker(slot)
        self._buffers: Tensor | None = None  # a vector that ends with its latest buffers

    def cost(self, message: Message, inputs: Sequence[Any]) -> Cost:
        if not isinstance(message, StepCall):
            return AT_ONCE
        busy_s = self._step_time.seconds_of_steps(
            message.batch, message.steps, message.samples, message.fault.factor
        )
        return busy_s, 0.0, message.fault, message.fault, StepReport(None, busy_s)

    def compute(self, message: Message, inputs: list[Any], answer: Any) -> Computed:
        import torch

        if not isinstance(message, StepCall):
            return self._save_or_restore(message, inputs)
        if inputs:
            [self._weights] = inputs
        trainer, worker = self._trainer, self._worker
        assert trainer is not None, "nothing to train with"
        assert worker is not None, "nothing to train with"
        assert self._weights is not None, f"{self.site} never pulled"
        loss, gradient, not_finite = trainer.compute(
            self.site, message, self._weights, self._buffers, worker
        )
        if worker.local is not None:  # the next iteration may begin with its present weights
            weights = worker.local.weights
            self._weights = torch.cat([weights, self._weights[len(weights) :]])
        if trainer.has_buffers:
            self._buffers = gradient
        return (gradient,), StepReport(loss, answer.busy_s, not_finite)

    def _save_or_restore(self, message: Message, inputs: list[Any]) -> Computed:
        """Execute a call that writes or reads a checkpoint."""
        import torch

        from raysync.training.files.state_file import decode, encode

        match message:
            case RestoreCall():
                self._buffers = torch.cat(inputs)
            case WorkerStateCall(batch=batch):
                assert self._worker is not None, "nothing to train with"
                data = encode(self._worker.state_before(batch))
                return (data,), [data]
            case LoadWorkerStateCall(data=data):
                assert self._worker is not None, "nothing to train with"
                self._worker.load_state(decode(data))
            case _:
                raise AssertionError(f"no call of a worker: {message}")
        return (), None

    def state(self) -> State:
        worker = None if self._worker is None else self._worker.state()
        return {"weights": self._weights, "buffers": self._buffers, "worker": worker}

    def load_state(self, state: State) -> None:
        self._weights, self._buffers = state["weights"], state["buffers"]
        if self._worker is not None:
            self._worker.load_state(state["worker"])


@dataclass(slots=True)
class ServerTimes:
    """The time of an update in a server, in the current phase."""

    update_s: float = 0.0  # per update, without reading gradients
    reading_s: float = 0.0  # per gradient


class ServerActor:
    """A parameter server, or one of several equal ones, which carry the same bytes in parallel.

    Under a collective it stands for the update that every worker makes after the all-reduce.
    """

    def __init__(
        self,
        site: str,
        times: ServerTimes,
        vectors: int,  # in a push: a gradient, and perhaps the weights that it was computed on
        server: ModelServer | None,  # None: nothing is trained
        # the workers' exchange of gradients before each update; None: the server gets gradients
        exchange: AllReduce | None = None,
    ) -> None:
        self.site = site
        self._times, self._vectors, self._exchange = times, vectors, exchange
        self._server = server

    def cost(self, message: Message, inputs: Sequence[Any]) -> Cost:
        # only updates take time
        if not inputs:
            return NO_COST
        if not isinstance(message, ApplyCall):
            return AT_ONCE
        times, count = self._times, len(inputs) // self._vectors
        if self._exchange is not None:
            exchange_s = self._exchange.seconds(inputs[:count])
            return exchange_s, times.update_s + times.reading_s, NO_FAULT, NO_FAULT, None
        return times.update_s, count * times.reading_s, NO_FAULT, NO_FAULT, None

    def compute(self, message: Message, inputs: list[Any], answer: Any) -> Computed:
        server = self._server
        assert server is not None, "nothing to train with"
        match message:
            case ApplyCall(plan=plan, publishes=publishes):
                assert plan is not None, "an update without its details"
                version = server.apply(plan, inputs)
                return ((server.publish(version, 0).clone(),) if publishes else ()), version
            case PublishCall(version=version, replica=replica):
                return (server.publish(version, replica).clone(),), None
            case ForgetCall(worker=worker):
                server.forget(worker)
            case StatisticsCall(worker=worker):
                return (server.statistics(worker),), None
            case SavedCall(name=name):
                return (server.saved(name),), None
            case RestoreCall():
                server.restore(*inputs)
            case SnapshotCall(names=names, version=version):
                data = server.snapshot(names, inputs, version)
                return (data,), [data]
            case _:
                raise AssertionError(f"no call of a server: {message}")
        return (), None

    def state(self) -> State:
        assert self._server is not None, "nothing to train with"
        return self._server.state()

    def load_state(self, state: State) -> None:
        assert self._server is not None, "nothing to train with"
        self._server.load_state(state)


class EvaluatorActor:
    """Evaluates in no time: on Ray, training never waits for an evaluation either."""

    site = "evaluator"

    def __init__(self, model: PublishedModel) -> None:
        self._model = model

    def cost(self, message: Message, inputs: Sequence[Any]) -> Cost:
        return NO_COST

    def compute(self, message: Message, inputs: list[Any], answer: Any) -> Computed:
        if isinstance(message, EvaluateCall):
            return (), self._model.measure(inputs, message.is_last)
        return (), self._model.encode(inputs)

    def state(self) -> State:
        return {}  # each call brings its weights

    def load_state(self, state: State) -> None: ...
