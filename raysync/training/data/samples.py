"""What must hold of a data set whose samples are read one by one."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset, IterableDataset

from raysync.errors import ConfigError
from raysync.users_code import users_code


def check_samples(where: str, samples: Dataset[Any]) -> int:
    """Check a map-style data set, and return the number of its samples.

    Args:
        where: what it is, for the error.
        samples: what should be a data set.

    Raises:
        ConfigError: it is no map-style data set, or it is empty.
    """
    if isinstance(samples, IterableDataset) or not hasattr(samples, "__getitem__"):
        raise ConfigError(
            f"{where}: {type(samples).__name__} is not a map-style data set: a batch is a function"
            " of (seed, worker, clock), so samples are read by index.\nAllowed: a"
            " torch.utils.data.Dataset with __getitem__ and __len__."
        )
    if not hasattr(samples, "__len__"):
        raise ConfigError(
            f"{where}: {type(samples).__name__} has no __len__; raysync deals the samples out by"
            " their number."
        )
    with users_code(f"{where}: __len__"):
        count = len(samples)
    if count < 1:
        raise ConfigError(f"{where}: {type(samples).__name__} is empty.")
    return count
