"""The samples of a worker's batches: its share of the training set, and their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import default_rng

from raysync.config import Data
from raysync.errors import ConfigError
from raysync.randomness import hashed_seed

Array = npt.NDArray[Any]
MOST_DRAWS = 100  # draws of shares until each worker has a sample


def shards(
    data: Data,
    count: int,
    labels: Callable[[], Array],
    slots: Mapping[str, int],
    seed: int,
    *,
    weighted: bool = False,
) -> dict[str, Array]:
    """Deal the training samples out to the worker slots, in proportion to their batch sizes.

    So after equally many iterations each slot has passed through its share equally often.

    Args:
        labels: returns the class of each sample; called for `dirichlet` only.
        slots: slot -> batch size, in the order of the experiment.
        weighted: samples are drawn independently by weights, as `Batches` does.

    Raises:
        ConfigError: there are more slots than samples, alpha is so small that in each of several
            draws a slot gets no sample, or `dirichlet` meets samples with more than one label.
    """
    rng = default_rng(hashed_seed(seed, "partition"))
    if count < len(slots):
        raise ConfigError(
            f"data: {count} training samples cannot be dealt out to {len(slots)} workers."
        )
    # Independent draws need no shares, and within shares they would have other weights: a sample
    # that is to be every second one would be too few draws of one slot, and none of the others.
    if data.partition == "shared" or (weighted and data.partition == "iid"):
        return {slot: np.arange(count) for slot in slots}
    if data.partition == "iid":
        order, owners = rng.permutation(count), _owners(list(slots.values()), count)
        return {slot: order[owners == index] for index, slot in enumerate(slots)}
    classes = labels()
    # Each class has shares from Dir(alpha) (Hsu et al. 2019, "Measuring the effects of
    # non-identical data distribution"), with batch sizes b from Dir(n alpha b / sum of b).
    alphas = [data.alpha * (len(slots) * size / sum(slots.values())) for size in slots.values()]
    for _ in range(MOST_DRAWS):
        parts: list[list[Array]] = [[] for _ in slots]
        for label in np.unique(classes):
            members = rng.permutation(np.flatnonzero(classes == label))
            cuts = np.cumsum(rng.dirichlet(alphas))[:-1] * len(members)
            for part, piece in zip(parts, np.split(members, cuts.astype(int)), strict=True):
                part.append(piece)
        dealt = [np.concatenate(part) for part in parts]
        if all(len(part) for part in dealt):
            return dict(zip(slots, dealt, strict=True))
    raise ConfigError(
        f"data.alpha: {data.alpha} leaves a worker without samples in each of {MOST_DRAWS} draws;"
        " use a larger one."
    )


def _owners(sizes: Sequence[int], count: int) -> Array:
    """Return each sample's slot number, (count,): the k-th turn of a slot of size b is at k / b.

    So every slot has a sample before one has two, and shares are proportional to within a sample or
    two.
    """
    shares = np.asarray(sizes) / sum(sizes)
    most = np.ceil(count * shares).astype(int) + 1
    owners = np.repeat(np.arange(len(sizes)), most)
    moments = np.concatenate([np.arange(number) for number in most]) / np.repeat(shares, most)
    return owners[np.argsort(moments, kind="stable")[:count]]


class Batches:
    """The batches of one slot: a function of (seed, slot, clock, batch size) alone.

    Batch c takes samples c * size to (c + 1) * size - 1 of the endless sequence of shuffled passes.
    A new size continues at another place of the sequence, so that pass omits or repeats samples.
    With weights, a batch is that many independent draws.
    """

    def __init__(self, shard: Array, seed: int, slot: str, weights: Array | None = None) -> None:
        """
        Args:
            shard: indices of the training set.
            weights: of all samples of the training set, above 0; None: passes.
        """
        self._cumulative = None if weights is None else np.cumsum(weights[shard])
        self._shard = shard
        self._seed = seed
        self._slot = slot
        self._pass_number = -1
        self._order = shard

    def seed(self, clock: int) -> int:
        """Return the seed of the model's own random draws on that batch."""
        return hashed_seed(self._seed, "step", self._slot, clock) >> 1

    def augmentation_seed(self, clock: int) -> int:
        return hashed_seed(self._seed, "augment", self._slot, clock) >> 1

    def indices(self, clock: int, size: int) -> Array:
        """Return the training-set indices of one batch, (size,)."""
        if self._cumulative is not None:
            return self._drawn(self._cumulative, clock, size)
        start, pieces, missing = clock * size, [], size
        while missing:
            number, offset = divmod(start, len(self._shard))
            piece = self._order_of_pass(number)[offset : offset + missing]
            pieces.append(piece)
            start += len(piece)
            missing -= len(piece)
        return np.concatenate(pieces)

    def _drawn(self, cumulative: Array, clock: int, size: int) -> Array:
        rng = default_rng(hashed_seed(self._seed, "draw", self._slot, clock))
        places = np.searchsorted(cumulative, rng.random(size) * cumulative[-1], side="right")
        # a product may be rounded up to the whole sum
        drawn: Array = self._shard[np.minimum(places, len(cumulative) - 1)]
        return drawn

    def _order_of_pass(self, number: int) -> Array:
        if number != self._pass_number:
            rng = default_rng(hashed_seed(self._seed, "batch", self._slot, number))
            self._pass_number, self._order = number, rng.permutation(self._shard)
        return self._order
