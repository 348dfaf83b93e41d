"""The import of torchvision where it and torch were built for different devices."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

# The package index's torchvision is built for CUDA. Beside a CPU torch its import fails with
# "operator torchvision::nms does not exist": its compiled operators cannot be loaded, yet their
# Python side registers shapes for them. With the two schemas declared, everything that is plain
# Python works (models, transforms, datasets), and so do torchmetrics, timm and Lightning, which
# import torchvision.
_SYMPTOM = "torchvision::nms"
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_libraries: list[Any] = []  # schemas vanish with their Library


def heal_torchvision() -> None:
    """Let later imports of torchvision in this process declare its missing operators."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torchvision":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            declaring = partial(_execute_with_operators, spec.loader.exec_module)
            spec.loader.exec_module = declaring  # type: ignore[method-assign]
        return spec


def _execute_with_operators(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        execute(module)
    except RuntimeError as error:
        if _SYMPTOM not in str(error):
            raise
        torch = import_module("torch")  # which torchvision has imported: raysync itself does not
        library = torch.library.Library("torchvision", "DEF")
        _libraries.append(library)
        library.define(f"nms{_SCHEMA}")
        library.define(f"qnms{_SCHEMA}")
        execute(module)
