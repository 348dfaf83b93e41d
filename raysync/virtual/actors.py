"""The actors of a run in virtual time: the costs of their methods, and what they compute where the
run trains.

worker      step(clock, size[, factor, latency]; [weights])      -> gradient; loss and seconds
            restore(; vector)                                    takes the buffers at its end
server      apply, apply_and_publish, publish, forget,
            statistics, snapshot, restore,
            saved                          see `training.model_server`
evaluator   evaluate(is_last; weights...)                        metrics
            state_dict(; weights...)                             the file of the model
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raysync.config import Experiment, WorkerGroup
from raysync.engine.step_time import StepTime
from raysync.training.apply_plan import ApplyPlan
from raysync.virtual.all_reduce import AllReduce
from raysync.virtual.backend import Cost

if TYPE_CHECKING:  # a run that only takes time needs no torch
    from torch import Tensor

    from raysync.training.model_server import ModelServer
    from raysync.training.state_file import State
    from raysync.virtual.trainer import Trainer

NO_COST: Cost = (0.0, 0.0, 0.0, 0.0, None)
AT_ONCE: Cost = (0.0, 0.0, None, 0.0, None)
"""The cost of what only happens around a checkpoint: not even its inputs take time."""
Computed = tuple[Sequence[Any], Any]


class WorkerActor:
    """A worker with the whole model, on the device that its group describes."""

    def __init__(
        self, slot: str, group: WorkerGroup, experiment: Experiment, trainer: Trainer | None
    ) -> None:
        """
        Args:
            slot: its site, and the key of its randomness.
            group: describes its device.
            experiment: gives seed and batch size.
            trainer: None if nothing is trained.
        """
        self.site = slot
        self._trainer = trainer
        batch_size = group.batch_size or experiment.batch_size
        self._step_time = StepTime(group, experiment.seed, slot, batch_size)
        self._weights: Tensor | None = None
        """The weights of its last pull."""
        self._buffers: Tensor | None = None
        """A vector whose end is its latest statistics."""

    def cost(self, method: str, fields: list[Any], inputs: Sequence[Any]) -> Cost:
        """See `Actor.cost`."""
        if len(fields) == 2:
            clock, size = fields
            busy_s = self._step_time.seconds(clock, size)
            return busy_s, 0.0, 0.0, 0.0, (None, busy_s, None)
        if method == "restore":
            return AT_ONCE
        clock, size, factor, added_s = fields
        busy_s = self._step_time.seconds(clock, size, factor)
        return busy_s, 0.0, added_s, added_s, (None, busy_s, None)

    def compute(self, method: str, fields: list[Any], inputs: list[Any], answer: Any) -> Computed:
        """See `Actor.compute`."""
        if method == "restore":
            import torch

            self._buffers = torch.cat(inputs)
            return (), None
        if inputs:
            [self._weights] = inputs
        assert self._trainer is not None, "nothing to train with"
        assert self._weights is not None, f"{self.site} never pulled"
        loss, gradient, not_finite = self._trainer.compute(
            self.site, fields[0], fields[1], self._weights, self._buffers
        )
        if self._trainer.has_buffers:
            self._buffers = gradient
        return (gradient,), (loss, answer[1], not_finite)

    def state(self) -> State:
        """See `Actor.state`."""
        return {"weights": self._weights, "buffers": self._buffers}

    def load_state(self, state: State) -> None:
        """See `Actor.load_state`."""
        self._weights, self._buffers = state["weights"], state["buffers"]


@dataclass(slots=True)
class UpdateTimes:
    """What an update takes a server, in the phase in force."""

    update_s: float = 0.0
    """The seconds of an update, without reading gradients."""
    reading_s: float = 0.0
    """The seconds for each gradient."""


class ServerActor:
    """A parameter server, or one of several equal ones: they carry the same bytes at the same
    time. Or what stands in its place where there is none: the same update on every worker, behind
    an all-reduce.
    """

    def __init__(
        self,
        site: str,
        times: UpdateTimes,
        vectors: int,
        server: ModelServer | None,
        exchange: AllReduce | None = None,
    ) -> None:
        """
        Args:
            site: its place in the network.
            times: what an update takes.
            vectors: the number of vectors of a push: its gradient, and perhaps the weights that it
                was computed on.
            server: None if nothing is trained.
            exchange: how the workers exchange the gradients of an update among themselves, before
                each makes the update; None: they have come here.
        """
        self.site = site
        self._times, self._vectors, self._exchange = times, vectors, exchange
        self._server = server

    def cost(self, method: str, fields: list[Any], inputs: Sequence[Any]) -> Cost:
        """See `Actor.cost`: only updates take time."""
        if not inputs:
            return NO_COST
        if method in {"snapshot", "restore"}:
            return AT_ONCE
        times, count = self._times, len(inputs) // self._vectors
        if self._exchange is not None:
            exchange_s = self._exchange.seconds(inputs[:count])
            return exchange_s, times.update_s + times.reading_s, 0.0, 0.0, None
        return times.update_s, count * times.reading_s, 0.0, 0.0, None

    def compute(self, method: str, fields: list[Any], inputs: list[Any], answer: Any) -> Computed:
        """See `Actor.compute`."""
        server = self._server
        assert server is not None, "nothing to train with"
        match method:
            case "apply":
                return (), server.apply(ApplyPlan(*fields), inputs)
            case "apply_and_publish":
                version = server.apply(ApplyPlan(*fields), inputs)
                return (server.publish(version, 0).clone(),), version
            case "publish":
                return (server.publish(*fields).clone(),), None
            case "forget":
                server.forget(*fields)
            case "statistics":
                return (server.statistics(*fields),), None
            case "saved":
                return (server.saved(*fields),), None
            case "restore":
                server.restore(*inputs)
            case "snapshot":
                data = server.snapshot(fields[0], inputs, *fields[1:])
                return (data,), [data]
        return (), None

    def state(self) -> State:
        """See `Actor.state`."""
        assert self._server is not None, "nothing to train with"
        return self._server.state()

    def load_state(self, state: State) -> None:
        """See `Actor.load_state`."""
        assert self._server is not None, "nothing to train with"
        self._server.load_state(state)


class EvaluatorActor:
    """Evaluates in no time: on Ray, training never waits for an evaluation either."""

    site = "evaluator"

    def __init__(
        self,
        measure: Callable[[bool, list[Tensor]], Mapping[str, float]],
        encode: Callable[[list[Tensor]], bytes],
    ) -> None:
        """
        Args:
            measure: called with whether the training is over, and the weights of each server;
                returns the metrics.
            encode: called with the weights of each server; returns the contents of the model's
                safetensors file.
        """
        self._measure, self._encode = measure, encode

    def cost(self, method: str, fields: list[Any], inputs: Sequence[Any]) -> Cost:
        """See `Actor.cost`."""
        return NO_COST

    def compute(self, method: str, fields: list[Any], inputs: list[Any], answer: Any) -> Computed:
        """See `Actor.compute`."""
        if method == "state_dict":
            return (), self._encode(inputs)
        return (), self._measure(fields[0], inputs)

    def state(self) -> State:
        """Return nothing: it takes its weights anew for each call."""
        return {}

    def load_state(self, state: State) -> None:
        """Do nothing."""
