"""Adapters to other libraries, one thin file each, and the words before the colon that name them:
`hf:`, `lightning:`, `timm:`, `torchvision:`.

No library is imported before an experiment asks for it by name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

TASKS = {"hf": "huggingface_task.HuggingFaceTask", "lightning": "lightning_task.LightningTask"}
"""Word -> module and class, called with what follows the colon and with the task's parameters."""
MODELS = {"timm": "timm_models.build", "torchvision": "torchvision_models.build"}
"""Word -> module and function, called with what follows the colon, `input_shape`, `classes`, and
the model's parameters."""


def task_adapter(name: str) -> Callable[..., Any] | None:
    """Return what makes the task of that name; None if no adapter is meant."""
    return _adapter(TASKS, name)


def model_adapter(name: str) -> Callable[..., Any] | None:
    """Return what builds the model of that name; None if no adapter is meant."""
    return _adapter(MODELS, name)


def _adapter(known: dict[str, str], name: str) -> Callable[..., Any] | None:
    word, colon, rest = name.partition(":")
    if not colon or word not in known:
        return None
    module, _, attribute = known[word].partition(".")
    return partial(getattr(import_module(f"{__name__}.{module}"), attribute), rest)
