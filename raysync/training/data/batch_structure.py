"""Batches of any structure: tensors in tuples, lists and mappings, moved and split alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from raysync.errors import ConfigError


def batch_to(batch: Any, move: Callable[[Any], Any]) -> Any:
    """Move all tensors of a batch, and objects that have a method `to`; others stay as they are."""
    if moves_itself(batch):
        moved = move(batch)
        return batch if moved is None else moved  # as Lightning does: it may move in place
    if isinstance(batch, Mapping):
        moved = {key: batch_to(value, move) for key, value in batch.items()}
        return moved if type(batch) is dict else _as_type_of(batch, moved)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(batch_to(value, move) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(batch_to(value, move) for value in batch)
    return batch


def moves_itself(batch: Any) -> bool:
    """Whether a batch, or a part of it, is a tensor or another object with `to(device)`."""
    return not isinstance(batch, type) and callable(getattr(batch, "to", None))


def _as_type_of(batch: Mapping[Any, Any], moved: dict[Any, Any]) -> Any:
    """Convert to the batch's own type, such as transformers' BatchEncoding, if a dict suffices."""
    try:
        return type(batch)(moved)  # type: ignore[call-arg]
    except TypeError:
        return moved


def split_batch(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Split every tensor of a batch along its first dimension."""
    if isinstance(batch, Tensor):
        return list(torch.split(batch, list(sizes)))
    if isinstance(batch, Mapping):
        parts = {key: split_batch(value, sizes) for key, value in batch.items()}
        return [{key: part[index] for key, part in parts.items()} for index in range(len(sizes))]
    if isinstance(batch, tuple | list):
        columns = [split_batch(value, sizes) for value in batch]
        return [type(batch)(column[index] for column in columns) for index in range(len(sizes))]
    if moves_itself(batch):
        raise ConfigError(
            f"a batch of {type(batch).__name__} cannot be cut into parts (micro_batch, several"
            " devices of a worker): tensors in tuples, lists and mappings can."
        )
    return [batch for _ in sizes]
