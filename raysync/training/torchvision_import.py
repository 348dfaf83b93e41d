"""The import of torchvision where it and torch were built for different devices.

The package index's torchvision is built for CUDA. Beside a CPU torch its import fails with
"operator torchvision::nms does not exist": its compiled operators cannot be loaded, yet their
Python side registers shapes for them. Declaring the two schemas first makes everything that is
plain Python work (models, transforms, datasets).
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_kept: list[torch.library.Library] = []  # schemas vanish with their Library


def torchvision(module: str) -> ModuleType:
    """Import `torchvision.MODULE`, with the operators declared where they are missing."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        _kept.append(library)
        library.define(f"nms{_SCHEMA}")  # type: ignore[no-untyped-call]
        library.define(f"qnms{_SCHEMA}")  # type: ignore[no-untyped-call]
    return importlib.import_module(f"torchvision.{module}")
