"""How many samples a batch has: a collate function may leave some of them out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

KeyPath = tuple[Any, ...]  # keys into a batch, then an axis or LENGTH
LENGTH = "length"
DEEP, WIDE = 5, 8  # most keys of a place, and most entries of a sequence that are looked at
TRIED = 3  # samples; the first may be one that is left out


class SampleCounter:
    """Counts the samples in batches of one collate function.

    Which number of a batch it is shows in batches of two and of three copies of a sample: a length,
    or a dimension, first or not. A batch without such a number has as many as were asked for.
    """

    def __init__(
        self, batch_of: Callable[[int, int], Any], indices: Callable[[int], Iterable[int]]
    ) -> None:
        """
        Args:
            batch_of: makes a batch of a sample, by its index, and a number of copies.
            indices: returns so many samples, or fewer.
        """
        self._batch_of, self._indices = batch_of, indices

    def __call__(self, batch: Any, size: int) -> int:
        sizes = dict(_sizes(batch))
        # A usual batch is full: tensors side by side, and not within a list of samples.
        first = [place for place in sizes if place[-1] == 0]
        if first and all(sizes[at] == size and not _is_in_list(at) for at in first):
            return size
        return size if self._place is None else min(size, sizes.get(self._place, size))

    @cached_property
    def _place(self) -> KeyPath | None:
        found = (self._place_by(int(index)) for index in self._indices(TRIED))
        return next((place for place in found if place is not None), None)

    def _place_by(self, index: int) -> KeyPath | None:
        try:
            two, three = (dict(_sizes(self._batch_of(index, copies))) for copies in (2, 3))
        except Exception:  # whatever it is, copies of this sample make no batch
            return None
        return next((at for at, size in two.items() if size == 2 and three.get(at) == 3), None)


def _is_in_list(place: KeyPath) -> bool:
    """Whether a tensor is in an entry of a list, and not an entry itself."""
    return any(isinstance(key, int) for key in place[:-2])


def _sizes(batch: Any, place: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(batch, Tensor | np.ndarray):
        yield from (((*place, axis), size) for axis, size in enumerate(batch.shape))
        return
    entries: Sequence[tuple[Any, Any]] = ()
    if isinstance(batch, Mapping):
        entries = list(batch.items())
    elif hasattr(batch, "_asdict"):  # a named tuple is one structure
        entries = list(batch._asdict().items())
    elif isinstance(batch, tuple | list):
        yield (*place, LENGTH), len(batch)
        entries = list(enumerate(batch[:WIDE]))
    elif hasattr(batch, "__dict__") and not isinstance(batch, type):
        entries = list(vars(batch).items())
    if len(place) < DEEP:
        for key, value in entries:
            yield from _sizes(value, (*place, key))
