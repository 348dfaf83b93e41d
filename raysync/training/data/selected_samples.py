"""The samples that a sampler chooses, as a data set of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from raysync.training.data.batches import Array


@dataclass(frozen=True, eq=False)
class Selection:
    """Which samples of a data set are drawn, and how often."""

    indices: Array  # (M,), in order; an index that occurs twice is drawn twice as often
    weights: Array | None = None  # (M,) above 0, of independent draws; None: passes over all


class SelectedSamples(Dataset[Any]):
    """Sample i is the i-th chosen one."""

    def __init__(self, samples: Dataset[Any], selection: Selection) -> None:
        self.samples, self.selection = samples, selection

    def __len__(self) -> int:
        return len(self.selection.indices)

    def __getitem__(self, index: int) -> Any:
        return self.samples[int(self.selection.indices[index])]

    @property
    def read_batch(self) -> Callable[[Array, int | None], Any] | None:
        """The method of a data set that reads whole batches; None: it reads sample by sample."""
        read = getattr(self.samples, "read_batch", None)
        return None if read is None else lambda at, seed: read(self.selection.indices[at], seed)


def indices_in_data_set(samples: Dataset[Any], places: Array) -> Array:
    """Return the user's indices of samples that may have been chosen."""
    return samples.selection.indices[places] if isinstance(samples, SelectedSamples) else places


def labels_of(labels: Callable[[Dataset[Any]], Sequence[int]], samples: Dataset[Any]) -> Array:
    """Return the labels of samples, as a function has them for the data set that they are from."""
    if isinstance(samples, SelectedSamples):
        return np.asarray(labels(samples.samples))[samples.selection.indices]
    return np.asarray(labels(samples))
