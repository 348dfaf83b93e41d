"""The model that a run's servers publish, on both engines: whole, in shards or in stages."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raysync.config import Experiment
from raysync.core.paradigm import AnyParadigm
from raysync.decoupled.cut import joined
from raysync.decoupled.plan import cut_model
from raysync.paradigms.decoupled import Decoupled
from raysync.training.evaluation import ModelEvaluation
from raysync.training.files.model_file import encoded
from raysync.training.models.initial_model import InitialModel
from raysync.training.worker.buffers import BufferLayout, layout_of


class PublishedModel:
    """Evaluates and encodes a model, of which each server, or shard, has published a vector."""

    def __init__(
        self,
        initial: InitialModel,
        experiment: Experiment,
        paradigm: AnyParadigm,
        device: str,
        *,
        loader_workers: int = 0,
    ) -> None:
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

    def measure(self, vectors: Sequence[Tensor], is_last: bool) -> dict[str, float]:
        return self._evaluation.measure(self._weights(vectors), is_last)

    def encode(self, vectors: Sequence[Tensor]) -> bytes:
        """Return the contents of a safetensors file, with the names of the author's module."""
        model, task = self._evaluation.model, self._evaluation.task
        return encoded(model, self._weights(vectors), self._module, task)

    def _weights(self, vectors: Sequence[Tensor]) -> Tensor:
        """Join the vectors to the model's weights (P + Q,)."""
        if self._stages:
            return joined(vectors, self._stages, self._evaluation.model.layout)
        return vectors[0] if len(vectors) == 1 else torch.cat(list(vectors))
