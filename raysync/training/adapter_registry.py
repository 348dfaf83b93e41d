"""The words of adapters to other libraries, each of which is imported only when it is named."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

# Word -> module and class, called with the text after the colon and the task's parameters.
TASKS = {"hf": "huggingface_task.HuggingFaceTask", "lightning": "lightning_task.LightningTask"}
# Word -> module and function, called with the text after the colon, `input_shape`, `classes`, and
# the model's parameters.
MODELS = {"timm": "timm_models.build", "torchvision": "torchvision_models.build"}


def task_adapter(name: str) -> Callable[..., Any] | None:
    return _adapter(TASKS, name)


def model_adapter(name: str) -> Callable[..., Any] | None:
    return _adapter(MODELS, name)


def _adapter(known: dict[str, str], name: str) -> Callable[..., Any] | None:
    word, colon, rest = name.partition(":")
    if not colon or word not in known:
        return None
    module, _, attribute = known[word].partition(".")
    return partial(getattr(import_module(f"raysync.training.adapters.{module}"), attribute), rest)
