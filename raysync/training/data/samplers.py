"""What a sampler of torch says: which samples are drawn, and with which weights.

In which order, and by which worker, is raysync's: a batch stays a function of (seed, slot, number).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from operator import index as as_index
from typing import Any, TypeVar

import numpy as np
from torch.utils.data import (
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from raysync.errors import ConfigError
from raysync.randomness import hashed_seed
from raysync.training.data.batch_reader import generators_restored, seed_generators
from raysync.training.data.batches import Array
from raysync.training.data.selected_samples import Selection
from raysync.users_code import users_code

T = TypeVar("T")
FOLLOWED = (
    "Followed are samplers that give the same indices in each pass, in any order, and torch's"
    " WeightedRandomSampler with replacement."
)


def read_selection(make: Callable[[], Any], samples: Dataset[Any], where: str) -> Selection | None:
    """Read what a sampler chooses among samples; None: all of them equally often.

    Args:
        make: makes or returns the sampler: torch's, any sized iterable of indices, None, or a
            selection that has been read.

    Raises:
        ConfigError: it cannot be followed.
    """
    # Made twice alike, and read with other random numbers and again: what differs is nothing that
    # a later pass, another process or a resumed run would have, too.
    with users_code(where), generators_restored():
        first, second = (_seeded(0, make) for _ in range(2))
        if first is None or isinstance(first, Selection):
            return first
        where = f"{where}: {type(first).__name__}"
        count = len(samples)  # type: ignore[arg-type]
        selection, *others = (
            _seeded(reading, partial(_selection_of, sampler, count, where))
            for reading, sampler in enumerate((first, first, second))
        )
    if not all(_are_equal(selection, other) for other in others):
        raise ConfigError(
            f"{where}: what it chooses differs from one reading to the next.\n{FOLLOWED}"
        )
    return selection


def _seeded(number: int, call: Callable[[], T]) -> T:
    seed_generators(hashed_seed(number, "sampler"))
    return call()


def _selection_of(sampler: Any, count: int, where: str) -> Selection | None:
    if _draws_as(sampler, WeightedRandomSampler):
        if not sampler.replacement:
            raise ConfigError(
                f"{where}: replacement=False cannot be followed: workers draw independently.\n"
                f"{FOLLOWED}"
            )
        return _weighted(np.array(sampler.weights, float), count, where)
    is_plain = _draws_as(sampler, RandomSampler) or _draws_as(sampler, SequentialSampler)
    if is_plain and len(sampler.data_source) == count:
        replaces = getattr(sampler, "replacement", False)
        return Selection(np.arange(count), np.ones(count)) if replaces else None
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        raise ConfigError(
            f"{where}: is the share of rank {sampler.rank} of {sampler.num_replicas}; raysync deals"
            " the samples out to its workers itself. Leave it out."
        )
    indices = np.sort(_indices(sampler, count, where))
    return None if np.array_equal(indices, np.arange(count)) else Selection(indices)


def _draws_as(sampler: Any, kind: Any) -> bool:
    """Whether a sampler gives its indices as one of torch's does, and not in a way of its own."""
    return isinstance(sampler, kind) and type(sampler).__iter__ is kind.__iter__


def _weighted(weights: Array, count: int, where: str) -> Selection:
    if len(weights) != count:
        raise ConfigError(f"{where}: has {len(weights):,} weights, for {count:,} samples.")
    if not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
        raise ConfigError(f"{where}: weights must be finite, from 0, and one of them above 0.")
    [indices] = np.nonzero(weights)
    return Selection(indices, weights[indices])


def _indices(sampler: Any, count: int, where: str) -> Array:
    if not hasattr(sampler, "__len__"):
        raise ConfigError(f"{where}: has no __len__, so a pass over its samples has no end.")
    length = len(sampler)
    given = list(islice(sampler, length + 1))
    if len(given) != length:
        more = "more" if len(given) > length else f"{len(given):,}"
        raise ConfigError(f"{where}: its length is {length:,}, but it gives {more} indices.")
    if not given:
        raise ConfigError(f"{where}: chooses no sample.")
    try:
        indices = np.array([as_index(value) for value in given], np.int64)
    except (TypeError, OverflowError):
        raise ConfigError(f"{where}: must give indices, got {given[0]!r:.80}.") from None
    if outside := [int(value) for value in indices if not 0 <= value < count][:1]:
        raise ConfigError(
            f"{where}: gives the index {outside[0]}; the {count:,} samples have 0 to {count - 1}."
        )
    return indices


def _are_equal(one: Selection | None, other: Selection | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one.indices, other.indices) and (
        one.weights is other.weights is None or np.array_equal(one.weights, other.weights)  # type: ignore[arg-type]
    )
