"""Weights from a file, and into a module: names, shapes and numbers, never a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from zipfile import BadZipFile, ZipFile, is_zipfile

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

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


def read(file: Path, where: str) -> StateDict:
    with legible(where), open_plain(file):
        return load_file(file)


def read_any(file: Path, where: str) -> StateDict:
    """Read the tensors of a file of weights, or of a record's final model.

    Args:
        file: a safetensors file; a `torch.save` of a `state_dict()`, or of a mapping that has one
            under `state_dict` like Lightning's checkpoints, of which only tensors are read; or a
            record's folder.

    Raises:
        ConfigError: it cannot be read, is damaged, or has other things than tensors.
    """
    file = file.expanduser()
    if file.is_dir():
        file = file / "model.safetensors"
    where = f"{where}: {file}"
    if file.suffix not in (".pt", ".pth", ".bin", ".ckpt"):
        return read(file, where)
    with legible(where), open_plain(file) as opened:
        if is_zipfile(opened) and any(entry.compress_type for entry in ZipFile(opened).infolist()):
            raise ValueError("it is packed, and torch.save packs nothing")
        content = torch.load(file, map_location="cpu", weights_only=True)
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(
        isinstance(tensor, Tensor) for tensor in content.values()
    ):
        raise ConfigError(f"{where}: holds no state_dict, a mapping of names to tensors.")
    return dict(content)


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
        f"{what} {_listed(names)}"
        for what, names in (
            ("it lacks", [name for name in expected if name not in tensors]),
            ("the model has no", [name for name in tensors if name not in expected]),
            ("it has", differ),
        )
        if names
    ]
    if reasons:
        raise ConfigError(f"{where}: does not fit the model: {'; '.join(reasons)}.")
    module.load_state_dict(tensors)
    return module


def _listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def legible(where: str) -> Iterator[None]:
    """Raise a ConfigError for a file that the block cannot read."""
    try:
        yield
    except _UNREADABLE as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{where}: cannot be read, or is damaged ({reason}).") from error
