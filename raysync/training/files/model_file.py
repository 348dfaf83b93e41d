"""The file of a trained model: its `state_dict` as safetensors, and rebuilding a module from it.

The file runs no code, so it may come from a stranger. Its metadata hold `input_shape` and
`classes`, the arguments of the model's function, so that no data are needed to rebuild it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from raysync.config import Experiment
from raysync.config.experiment import GIVEN
from raysync.errors import ConfigError
from raysync.paradigms.class_loading import NotTrusted, untrusted_error
from raysync.training.formats.state_dict import legible
from raysync.training.loading import load_task
from raysync.training.models.builtin import ModelPlan
from raysync.training.models.initial_model import seeded
from raysync.training.task import Task
from raysync.training.tasks.supervised import Supervised
from raysync.training.vectors.flat import FlatModel

Module = nn.Module
OFFERED = "raysync_model"  # metadata key of the arguments of a model's function, as JSON


def check_savable(module: nn.Module, name: str) -> None:
    """Refuse before the run a model that could not be saved after it."""
    for key, value in module.state_dict().items():
        if isinstance(value, Tensor) and value.layout is torch.strided:
            try:
                save({key: torch.empty(0, dtype=value.dtype)})
            except (KeyError, ValueError):
                kind = f"a tensor of {value.dtype}"
            else:
                continue
        else:
            kind = "a sparse tensor" if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(
            f"model {name}: its state_dict cannot be saved: {key!r} is {kind}.\n"
            "To train without saving the model, set keep: none."
        )


@torch.no_grad()
def encoded(model: FlatModel, weights: Tensor, module: nn.Module, task: Task) -> bytes:
    """Return a model as a safetensors file; tied weights have an entry for each of their names.

    Args:
        weights: parameters and buffers, (P + Q,).
        module: names the tensors, which it shares with `model`.
    """
    model.read_weights(weights)
    model.read_buffers(weights)
    tensors = {
        name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in module.state_dict().items()
    }
    metadata = {"format": "pt"}
    if isinstance(task, Supervised) and isinstance((plan := task.plan).source, str):
        offered = {"input_shape": plan.input_shape, "classes": plan.classes, "tokens": plan.tokens}
        metadata[OFFERED] = json.dumps(offered)
    return in_order(save(tensors, metadata))


def in_order(file: bytes) -> bytes:
    """Sort the metadata of a safetensors file by name."""
    # safetensors writes them in another order each time, but equal models are to be equal files
    begin = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:begin])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    assert len(text) <= begin - 8, "another header"
    return file[:8] + text.ljust(begin - 8) + file[begin:]


def rebuilt(file: Path, where: str, experiment: Experiment) -> nn.Module:
    """Rebuild the module of a file, with initial weights.

    Raises:
        ConfigError: the model was given to the run as an object; its function or task cannot be
            imported, or is not trusted; or the metadata are damaged.
    """
    name = experiment.model.name
    if experiment.task is not None and experiment.names_a_task:
        name = experiment.task.name
        if not name.startswith(GIVEN):
            with _trust_required(), seeded(experiment.seed):
                return load_task(experiment.task).build_model()
    with legible(where):
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
        offered = json.loads(metadata.get(OFFERED, "null"))
        shape, classes, tokens = map((offered or {}).get, ("input_shape", "classes", "tokens"))
        if offered is not None and not _are_sizes(shape, classes):
            raise ValueError(f"{OFFERED}: {metadata[OFFERED][:80]!r}")
    if offered is None:
        raise ConfigError(
            f"{where}: the model {name} was given as a Python object, and cannot be rebuilt.\n"
            "Build it yourself and load the weights into it: record.model(module)."
        )
    plan = ModelPlan(
        source=name,
        parameters=experiment.model.parameters,
        input_shape=tuple(shape),
        classes=classes,
        tokens=bool(tokens),
    )
    try:
        with _trust_required(), seeded(experiment.seed):
            return plan.build()
    except RuntimeError as error:  # no memory, for a shape that no data ever had
        raise ConfigError(f"{where}: the model {name} cannot be built ({error}).") from error


@contextmanager
def _trust_required() -> Iterator[None]:
    """Raise a `ConfigError` that a record must be trusted before its references are imported."""
    try:
        yield
    except NotTrusted as reference:
        raise untrusted_error(str(reference)) from None


def _are_sizes(shape: Any, classes: Any) -> bool:
    return isinstance(shape, list) and all(
        type(size) is int and size > 0 for size in (*shape, classes)
    )
