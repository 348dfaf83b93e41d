"""The evaluator actor; training never waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from raysync.cluster.actor_errors import ProcessRestarted, answers
from raysync.cluster.actors.actor_spec import Place, Role
from raysync.cluster.actors.devices import current_place, devices_of_actor
from raysync.cluster.actors.threads import Threads, use_threads
from raysync.cluster.actors.warm_up import warm_up
from raysync.cluster.run_spec import RunSpec
from raysync.cluster.transports.payloads import Payload, forget_run, incoming
from raysync.decoupled.cut import joined
from raysync.decoupled.pipelined_topology import PipelinedPlan
from raysync.decoupled.plan import cut_model
from raysync.engine.messages import EvaluateCall, StateDictCall
from raysync.paradigms.decoupled import Decoupled
from raysync.training.evaluation import ModelEvaluation
from raysync.training.files.model_file import encoded
from raysync.training.models.initial_model import InitialModel
from raysync.training.worker.buffers import BufferLayout, layout_of


class Evaluator:
    """Evaluates published weights on the test set, in the order of their publication."""

    def __init__(self, threads: Threads, role: Role) -> None:
        use_threads(threads)
        self._role = role
        self._evaluation: ModelEvaluation | None = None

    def __repr__(self) -> str:
        return str(self._role)

    def reset(self, spec: RunSpec, model: InitialModel) -> Place:
        forget_run()
        [device] = devices_of_actor()
        self._assembly, experiment = _assembly(spec), spec.experiment
        whole, self._module = self._assembly.modules(model)
        self._evaluation = ModelEvaluation(
            model, whole.to(device), experiment, experiment.data.loader_workers
        )
        warm_up((model.name, device, "evaluation"), lambda: self._evaluate_one_batch)
        return current_place([device])

    def _evaluate_one_batch(self, number: int) -> None:
        assert self._evaluation is not None, "warm-up before reset"
        self._evaluation.warm_up()

    @answers
    def evaluate(self, message: EvaluateCall, *weights: Payload) -> dict[str, float]:
        """Return the metrics of published weights: name -> value."""
        evaluation = self._ready_evaluation
        return evaluation.measure(self._assembly.vector(incoming(*weights)), message.is_last)

    @answers
    def state_dict(self, message: StateDictCall, *weights: Payload) -> bytes:
        """Return a model with published weights as the contents of a safetensors file."""
        evaluation = self._ready_evaluation
        vector = self._assembly.vector(incoming(*weights))
        return encoded(evaluation.model, vector, self._module, evaluation.task)

    @property
    def _ready_evaluation(self) -> ModelEvaluation:
        """The evaluation of the run.

        Raises:
            ProcessRestarted: Ray has restarted the process since `reset`.
        """
        if self._evaluation is None:
            raise ProcessRestarted
        return self._evaluation


def _assembly(spec: RunSpec) -> Assembly:
    seed, topology = spec.experiment.seed, spec.topology
    if isinstance(topology, PipelinedPlan):
        return Stages(seed, topology.paradigm)
    return WholeModel(seed)


class Assembly(Protocol):
    """The assembly of the evaluated model from what the servers publish."""

    def modules(self, model: InitialModel) -> tuple[nn.Module, nn.Module]:
        """Return the evaluated model, and the author's module, which shares its tensors."""

    def vector(self, weights: Sequence[Tensor]) -> Tensor:
        """Join the vectors of all servers, or shards, to the model's weights (P + Q,)."""


@dataclass(frozen=True, slots=True)
class WholeModel:
    """The model of one server, whose shards have a part of the vector each."""

    seed: int

    def modules(self, model: InitialModel) -> tuple[nn.Module, nn.Module]:
        module = model.build(self.seed)
        return module, module

    def vector(self, weights: Sequence[Tensor]) -> Tensor:
        return weights[0] if len(weights) == 1 else torch.cat(list(weights))


@dataclass(slots=True)
class Stages:
    """The network joined from its stages."""

    seed: int
    paradigm: Decoupled
    # the layouts of the stages, then that of the whole; known once the model is built
    layouts: list[BufferLayout] = field(default_factory=list)

    def modules(self, model: InitialModel) -> tuple[nn.Module, nn.Module]:
        module, parts = cut_model(model, self.seed, self.paradigm)
        whole = nn.Sequential(*(item for part in parts for item in part))
        self.layouts = [layout_of(each) for each in (*parts, whole)]
        return whole, module

    def vector(self, weights: Sequence[Tensor]) -> Tensor:
        *stages, whole = self.layouts
        return joined(weights, stages, whole)
