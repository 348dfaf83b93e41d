"""The program of the evaluator: a model of published weights, whole, in shards or in stages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raysync.decoupled.cut import joined
from raysync.decoupled.plan import cut_model
from raysync.engine.messages import EvaluateCall, Message, StateDictCall
from raysync.paradigms.decoupled import Decoupled
from raysync.programs.program import Handled, check_size, not_mine
from raysync.programs.run_spec import RunSpec
from raysync.training.evaluation import ModelEvaluation
from raysync.training.files.model_file import encoded
from raysync.training.formats.state_file import State
from raysync.training.models.initial_model import InitialModel
from raysync.training.vectors.buffers import BufferLayout, layout_of


class EvaluatorProgram:
    """Evaluates and encodes a model, of which each server, or shard, has published a vector."""

    def __init__(
        self, spec: RunSpec, initial: InitialModel, device: str, loader_workers: int = 0
    ) -> None:
        experiment, paradigm = spec.experiment, spec.topology.paradigm
        self._stages: list[BufferLayout] = []
        # the author's module shares its tensors with `whole`
        if isinstance(paradigm, Decoupled):
            self._module, parts = cut_model(initial, experiment.seed, paradigm)
            whole: nn.Module = nn.Sequential(*(item for part in parts for item in part))
            self._stages = [layout_of(part) for part in parts]
        else:
            whole = self._module = initial.build(experiment.seed)
        self._evaluation = ModelEvaluation(initial, whole.to(device), experiment, loader_workers)
        self.warm_up = self._evaluation.warm_up

    def handle(
        self, message: Message, inputs: Sequence[Tensor], into: Tensor | None = None
    ) -> Handled:
        evaluation = self._evaluation
        match message:
            case EvaluateCall(is_last=is_last):
                return Handled(answer=evaluation.measure(self._weights(inputs), is_last))
            case StateDictCall():  # with the names of the author's module
                model, task = evaluation.model, evaluation.task
                return Handled(answer=encoded(model, self._weights(inputs), self._module, task))
        raise not_mine("evaluator", message)

    def _weights(self, vectors: Sequence[Tensor]) -> Tensor:
        """Join the vectors to the model's weights (P + Q,)."""
        layout = self._evaluation.model.layout
        if self._stages:
            for vector, stage in zip(vectors, self._stages, strict=True):
                check_size([vector], stage.parameters + stage.size)
            return joined(vectors, self._stages, layout)
        check_size(vectors, layout.parameters + layout.size)
        return vectors[0] if len(vectors) == 1 else torch.cat(list(vectors))

    def state(self) -> State:
        return {}  # each call brings its weights

    def load_state(self, state: State) -> None: ...
