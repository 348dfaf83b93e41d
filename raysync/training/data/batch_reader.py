"""Reads batches: from memory, or sample by sample from a data set, perhaps ahead."""

from __future__ import annotations

import random  # noqa: TID251  (the user's data sets draw from it, seeded for each sample)
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, count, pairwise
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from raysync.randomness import hashed_seed
from raysync.training.data.batch_structure import split_batch
from raysync.training.data.batches import Batches
from raysync.training.data.sample_counts import SampleCounter
from raysync.training.data.selected_samples import indices_in_data_set

Key = tuple[int, int]  # seed of a sample's randomness, and its index


class SeededSamples(Dataset[Any]):
    """Reads each sample after seeding torch's, NumPy's and Python's generators for it."""

    def __init__(self, samples: Dataset[Any]) -> None:
        self._samples = samples

    def __getitem__(self, key: Key) -> Any:
        seed, index = key
        seed_generators(seed)
        return self._samples[index]


def seed_generators(seed: int) -> None:
    """Seed the global generators of torch (on the CPU), NumPy and Python."""
    torch.default_generator.manual_seed(seed >> 1)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def generators_restored() -> Iterator[None]:
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


@contextmanager
def draws_of(seed: int, device: torch.device) -> Iterator[None]:
    """Seed all global generators for the block, and leave them as they were."""
    with generators_restored(), torch.random.fork_rng(devices=_gpus(device)):
        seed_generators(seed)
        if device.type == "cuda":
            torch.cuda.manual_seed(seed >> 1)
        yield


def _gpus(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []


class BatchReader:
    """The batches of one worker, in parts: one for each device, or for each micro-batch."""

    def __init__(
        self,
        samples: Dataset[Any],
        collate: Callable[[list[Any]], Any],
        batches: Batches,
        workers: int = 0,  # processes that read ahead; 0: this process reads
    ) -> None:
        self._samples, self._collate, self._batches = samples, collate, batches
        self._seeded_samples, self._workers = SeededSamples(samples), workers
        self._read_batch = getattr(samples, "read_batch", None)
        first = partial(batches.indices, 0)
        self._count = SampleCounter(_copies(self._seeded_samples, collate), first)
        self._ahead: Iterator[Any] | None = None
        # clock and sizes of the batch that `_ahead` yields next
        self._next_ahead: tuple[int, tuple[int, ...]] | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether a batch is read at once, and not sample by sample."""
        return self._read_batch is not None

    def seed(self, clock: int) -> int:
        """Return the seed of the model's own random draws on that batch."""
        return self._batches.seed(clock)

    def samples(self, clock: int, size: int) -> list[int]:
        """Return the indices of a batch in the task's training set."""
        places = self._batches.indices(clock, size)
        return [int(index) for index in indices_in_data_set(self._samples, places)]

    def read(self, clock: int, sizes: Sequence[int]) -> list[Any]:
        if self._read_batch is not None:
            indices = self._batches.indices(clock, sum(sizes))
            batch = self._read_batch(indices, self._batches.augmentation_seed(clock))
            return [batch] if len(sizes) == 1 else split_batch(batch, sizes)
        if self._workers:
            return self._read_ahead(clock, tuple(sizes))
        keys = keys_of(self._batches, clock, sizes)
        return list(_collated(self._seeded_samples, self._collate, keys))

    def shares(self, batches: Sequence[Any], sizes: Sequence[int]) -> list[float]:
        """Return the parts' shares of the samples that are there, of as many as were read."""
        # A push counts for as many samples as were asked for, so that batches and workload stay a
        # function of (seed, slot, number); but its mean is over those that the collate left.
        counts = list(sizes)
        if self._read_batch is None and len(sizes) > 1:
            counts = list(map(self._count, batches, sizes))
        counts = counts if any(counts) else list(sizes)
        return [count / sum(counts) for count in counts]

    def _read_ahead(self, clock: int, sizes: tuple[int, ...]) -> list[Any]:
        # any other step, after a restart or with a new batch size, restarts the processes
        if self._ahead is None or self._next_ahead != (clock, sizes):
            keys = _BatchKeys(self._batches, clock, sizes)
            self._ahead = _loaded(self._seeded_samples, self._collate, keys, self._workers)
        parts = [next(self._ahead) for _ in sizes]
        self._next_ahead = clock + 1, sizes
        return parts


class _BatchKeys:
    """An endless batch sampler: the keys of all batches from a clock on, part by part."""

    def __init__(self, batches: Batches, clock: int, sizes: Sequence[int]) -> None:
        self._batches, self._clock, self._sizes = batches, clock, sizes

    def __iter__(self) -> Iterator[list[Key]]:
        for clock in count(self._clock):
            yield from keys_of(self._batches, clock, self._sizes)


def _copies(
    seeded: SeededSamples, collate: Callable[[list[Any]], Any]
) -> Callable[[int, int], Any]:
    def batch_of(index: int, copies: int) -> Any:
        with generators_restored():
            return collate([seeded[0, index] for _ in range(copies)])

    return batch_of


def keys_of(batches: Batches, clock: int, sizes: Sequence[int]) -> list[list[Key]]:
    base = batches.augmentation_seed(clock)
    keys = [
        (hashed_seed(base, "sample", clock=place), int(index))
        for place, index in enumerate(batches.indices(clock, sum(sizes)))
    ]
    return [keys[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]


def even_sizes(total: int, parts: int) -> list[int]:
    """Return the sizes of nearly equal parts, the larger ones first, like `tensor_split`."""
    return [total // parts + (index < total % parts) for index in range(parts)]


def read_in_order(
    samples: Dataset[Any],
    collate: Callable[[list[Any]], Any],
    batch_size: int,
    limit: int,
    workers: int = 0,
) -> Iterator[tuple[Any, int]]:
    """Yield batches of the first `limit` samples, with their sizes, alike at each evaluation.

    A size is the number of samples that the collate left.
    """
    starts = range(0, limit, batch_size)
    read_batch = getattr(samples, "read_batch", None)
    if read_batch is not None:
        for start in starts:
            indices = np.arange(start, min(start + batch_size, limit))
            yield read_batch(indices, None), len(indices)
        return
    keys = [
        [(hashed_seed(0, "evaluation", clock=index), index) for index in range(start, end)]
        for start, end in pairwise([*starts, limit])
    ]
    seeded = SeededSamples(samples)
    if workers:
        batches = _loaded(seeded, collate, keys, workers)
    else:
        batches = _collated(seeded, collate, keys)
    counted = SampleCounter(_copies(seeded, collate), lambda number: range(min(number, limit)))
    for batch, part in zip(batches, keys, strict=True):
        if size := counted(batch, len(part)):  # the metrics of an empty batch are not finite
            yield batch, size


def _loaded(
    seeded: SeededSamples, collate: Callable[[list[Any]], Any], keys: Any, workers: int
) -> Iterator[Any]:
    """Read batches in other processes, ahead of their use; `keys`: a batch sampler."""
    loader = DataLoader(
        seeded,
        batch_sampler=keys,
        num_workers=workers,
        collate_fn=collate,
        generator=torch.Generator(),  # by default it draws from the model's generator
    )
    return iter(loader)


def _collated(
    seeded: SeededSamples, collate: Callable[[list[Any]], Any], keys: Sequence[Sequence[Key]]
) -> Iterator[Any]:
    for part in keys:
        with generators_restored():
            batch = collate([seeded[key] for key in part])
        yield batch
