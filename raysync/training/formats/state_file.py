"""A state as a safetensors file: tensors, and JSON in its metadata.

A state is a tree of mappings with string keys, lists, tuples, JSON scalars and tensors. Strides are
saved: they choose the kernel and so the last bit. The file runs no code, so it may come from a
stranger.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from raysync.errors import ConfigError
from raysync.training.formats.state_dict import legible

State = dict[str, Any]
KEY = "raysync_state"  # metadata key of everything but the tensors
METADATA, LENGTH_BYTES, ALIGNMENT = "__metadata__", 8, 8  # of a safetensors file's header
MIB = 2**20
# Keys of a mapping that represents a tensor by name, with its strides if not contiguous, or a
# tuple.
TENSOR, STRIDES, TUPLE = "$tensor", "$strides", "$tuple"
# Memory of a tensor with strides, in elements: the most, and the most for each element.
MOST_STRIDED, MOST_SPREAD = 1 << 20, 100
CHECKPOINT = "checkpoint"  # the file's name in messages


class FileMemory:
    """Memory for one file after another: to touch new pages takes several times as long."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def of(self, size: int) -> Tensor:
        """Return memory for a file, valid until the next call."""
        if len(self._memory) < size:
            self._memory = torch.empty(-(-size // MIB) * MIB, dtype=torch.uint8)
        return self._memory[:size]


def encode(state: Mapping[str, Any], memory: FileMemory | None = None) -> memoryview:
    """Encode a state; a tensor that occurs several times is written once.

    Args:
        memory: has the file, until it is used again; None: the file has its own.

    Raises:
        ConfigError: a value, whose path it names, is neither a tensor nor JSON-native.
    """
    tensors: dict[str, Tensor] = {}
    written = _Writer(tensors).to_json(state, "")
    return _save(tensors, {KEY: json.dumps(written)}, memory or FileMemory())


def _save(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str], memory: FileMemory
) -> memoryview:
    """Write the bytes that `safetensors.torch.save` returns after copying them several times."""
    # a file without numbers has the same names of types, and the same order
    empty = {name: torch.empty(0, dtype=tensor.dtype) for name, tensor in tensors.items()}
    header, end = _header(save(empty, dict(metadata))), 0
    for name, entry in header.items():
        if name != METADATA:
            begin, end = end, end + tensors[name].nbytes
            entry |= {"shape": list(tensors[name].shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    begin = LENGTH_BYTES + len(text)
    file = memory.of(begin + end)
    file.numpy()[:begin] = bytearray(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    for name, tensor in tensors.items():
        numbers = tensor.reshape(-1).view(torch.uint8)
        at = begin + header[name]["data_offsets"][0]
        file[at : at + len(numbers)].copy_(numbers)
    return file.numpy().data


def _header(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    header: dict[str, Any] = json.loads(data[LENGTH_BYTES : LENGTH_BYTES + length])
    return header


def decode(data: bytes | memoryview) -> State:
    """Decode a state; its tensors are in memory of their own."""
    data = bytes(data)
    with legible(CHECKPOINT):
        metadata = _header(data)[METADATA]
        state: State = _read(json.loads(metadata[KEY]), load(data))
    return state


def check_fits(what: str, saved: object, own: object) -> None:
    """Refuse a state whose `what` differs from this run's."""
    if saved != own:
        raise ConfigError(
            f"{CHECKPOINT}: it does not fit this run: {what}: {reprlib.repr(saved)} instead of"
            f" {reprlib.repr(own)}."
        )


class _Writer:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        # (address, type, shape, strides) -> name of the tensor
        self._names: dict[tuple[Any, ...], str] = {}
        self._storages: set[int] = set()

    def to_json(self, value: Any, path: str) -> Any:
        match value:
            case Tensor():
                strides = {} if value.is_contiguous() else {STRIDES: list(value.stride())}
                return {TENSOR: self._register(value, path), **strides}
            case Mapping() if not {TENSOR, TUPLE}.intersection(value):
                return {key: self.to_json(inner, f"{path}/{key}") for key, inner in value.items()}
            case list() | tuple():
                items = [self.to_json(inner, f"{path}/{i}") for i, inner in enumerate(value)]
                return items if isinstance(value, list) else {TUPLE: items}
            case None | bool() | int() | float() | str():
                return value
        raise ConfigError(
            f"{CHECKPOINT}: it can hold tensors, numbers and strings, but {path[1:]} is of type"
            f" {type(value).__name__}."
        )

    def _register(self, tensor: Tensor, path: str) -> str:
        identity = tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
        if identity not in self._names:
            self._names[identity] = path
            storage = tensor.untyped_storage().data_ptr()
            if storage in self._storages:  # safetensors refuses tensors that overlap
                tensor = tensor.clone()
            self._storages.add(storage)
            self._tensors[path] = tensor.detach().contiguous()
        return self._names[identity]


def _read(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    match value:  # a pattern cannot contain the constants of these keys
        case {"$tensor": name, "$strides": strides} if all(strides):
            return _strided(tensors[name], strides)
        case {"$tensor": name}:
            return tensors[name]
        case {"$tuple": items}:
            return tuple(_read(inner, tensors) for inner in items)
        case dict():
            return {key: _read(inner, tensors) for key, inner in value.items()}
        case list():
            return [_read(inner, tensors) for inner in value]
    return value


def _strided(tensor: Tensor, strides: list[int]) -> Tensor:
    """Return a tensor with other strides, unless they would take far more memory than the
    tensor.
    """
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    if min(strides) < 0 or reach > MOST_STRIDED + MOST_SPREAD * tensor.numel():
        raise ValueError(f"strides {strides} of a tensor of {tuple(tensor.shape)}")
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
