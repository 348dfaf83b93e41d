"""The attributes of a module, also of one that torch.jit.script has compiled."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

FLAGS = ("training", "_is_full_backward_hook")


class _Scripted(MutableMapping[str, Any]):
    """Reads and writes the attributes of a compiled module, which are not in its `__dict__`."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        of_type = getattr(module, "_concrete_type", None)
        names = {} if of_type is None else of_type.get_attributes()
        self._names = [name for name in names if name not in FLAGS]

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return getattr(self._module, name)

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"a compiled module keeps its attribute {name!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def attributes_of(part: nn.Module) -> MutableMapping[str, Any]:
    """Return the attributes of a module itself, by name; writing changes the module."""
    return _Scripted(part) if isinstance(part, torch.jit.ScriptModule) else vars(part)


@contextmanager
def attributes_restored(module: nn.Module) -> Iterator[None]:
    """Forget what the block assigns to attributes and buffers of a module and its parts."""
    before = [
        (mapping, dict(mapping)) for part in module.modules() for mapping in _mappings_of(part)
    ]
    try:
        yield
    finally:
        for mapping, values in before:
            for name in mapping.keys() - values.keys():
                del mapping[name]
            mapping.update(values)


def _mappings_of(part: nn.Module) -> list[MutableMapping[str, Any]]:
    # the buffers of a compiled module cannot be assigned
    is_compiled = isinstance(part, torch.jit.ScriptModule)
    return [attributes_of(part)] if is_compiled else [vars(part), part._buffers]
