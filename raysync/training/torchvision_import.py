"""The import of torchvision where it and torch were built for different devices.

The package index's torchvision is built for CUDA. Beside a CPU torch its import fails with
"operator torchvision::nms does not exist": its compiled operators cannot be loaded, yet their
Python side registers shapes for them. Declaring the two schemas first makes everything that is
plain Python work (models, transforms, datasets).
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch

from raysync.errors import ConfigError
from raysync.paradigms.class_loading import load_reference

_SYMPTOM = "torchvision::nms"
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[torch.library.Library] = []  # schemas vanish with their Library


def torchvision(module: str) -> ModuleType:
    """Import `torchvision.MODULE`, with the operators declared where they are missing."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if _SYMPTOM not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        _kept.append(library)
        library.define(f"nms{_SCHEMA}")  # type: ignore[no-untyped-call]
        library.define(f"qnms{_SCHEMA}")  # type: ignore[no-untyped-call]
    return importlib.import_module(f"torchvision.{module}")


def load_beside_torchvision(reference: str, where: str) -> Any:
    """Import what a reference names, as `load_reference` does, even if its module imports
    torchvision, perhaps through torchmetrics, timm or Lightning.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        return load_reference(reference, where)
    except ConfigError as error:
        if _SYMPTOM not in str(error):
            raise
    torchvision("ops")
    return load_reference(reference, where)


class OperatorsDeclared:
    """A value that, when it is unpickled, declares the operators if this process had to: to be
    pickled before what a module that imports torchvision defines.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (bool(_kept),)


def _unpickled(needed: bool) -> OperatorsDeclared:
    if needed:
        torchvision("ops")
    return OperatorsDeclared()
