"""Weights from a file, and into a module: names, shapes and numbers, never a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from zipfile import BadZipFile

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from raysync.config.base import listed
from raysync.config.bounded_file import open_plain
from raysync.errors import ConfigError

StateDict = dict[str, Tensor]
# errors of safetensors and torch for a file that is missing, cut off, or of another kind
_UNREADABLE = (
    OSError,
    SafetensorError,
    UnpicklingError,
    BadZipFile,
    RuntimeError,
    EOFError,
    ValueError,
    AttributeError,
    LookupError,
    TypeError,
    ArithmeticError,
    MemoryError,
)
LISTED = 5  # most names of a kind in a message
# part of a name -> what put it there
WRAPPERS = {"module": "DistributedDataParallel", "_orig_mod": "torch.compile"}


def read(file: Path, where: str) -> StateDict:
    with legible(where), open_plain(file):
        return load_file(file)


def fill(module: nn.Module, tensors: Mapping[str, Tensor], where: str) -> nn.Module:
    """Load tensors into a module that has just these, and return it; else raise a ConfigError."""
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{where}: needs an nn.Module, got {type(module).__name__}.")
    expected = module.state_dict()
    differ = [
        f"{name} {tuple(tensors[name].shape)} instead of {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in tensors and not is_lazy(tensor) and tensors[name].shape != tensor.shape
    ]
    reasons = [
        f"{what} {listed(names, LISTED)}"
        for what, names in (
            ("it lacks", [name for name in expected if name not in tensors]),
            ("the model has no", [name for name in tensors if name not in expected]),
            ("it has", differ),
        )
        if names
    ]
    if reasons:
        hint = _wrapper_hint(expected, tensors)
        raise ConfigError(f"{where}: does not fit the model: {'; '.join(reasons)}.{hint}")
    module.load_state_dict(tensors)
    return module


def _wrapper_hint(model: Mapping[str, Tensor], file: Mapping[str, Tensor]) -> str:
    """Say which wrapper makes the names differ; "" if none does."""
    for whose, names, others in (("file", file, model), ("model", model, file)):
        inner = {_unwrapped(name) for name in others}
        wrapped = [name for name in names if name not in others and _unwrapped(name) in inner]
        for part, wrapper in WRAPPERS.items():
            if any(part in name.split(".") for name in wrapped):
                return (
                    f" Names of the {whose} have {part!r} of {wrapper}: take the state_dict of the"
                    f" model within, model.{part}."
                )
    return ""


def _unwrapped(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


@contextmanager
def legible(where: str) -> Iterator[None]:
    """Raise a ConfigError for a file that the block cannot read."""
    try:
        yield
    except _UNREADABLE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        if isinstance(error, EOFError):
            reason = "it is cut off"
        raise ConfigError(f"{where}: cannot be read, or is damaged ({reason}).") from error
