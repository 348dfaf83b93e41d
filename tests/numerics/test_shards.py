"""A model split among several stores learns as a whole one does."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, strategies as st
from msgspec.structs import replace
from torch import nn

from raysync.config import Update
from raysync.training.server.parameter_store import shard_of
from raysync.training.vectors.flat import FlatModel
from raysync.training.vectors.parts import BLOCK, bounds, spans
from tests.builders.updates import UPDATES, update_plan

WORKERS = ["a#1", "b#1", "c#1"]


def model():
    torch.manual_seed(0)
    return FlatModel(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))


def split(vector, shards):
    return [vector[span] for span in spans(len(vector), shards)]


def train(flat, shards, update, rounds=8):
    """What the shards have published after some updates with the same gradients."""
    stores = [shard_of(flat, update, index, shards) for index in range(shards)]
    generator = torch.Generator().manual_seed(1)
    length = flat.size + flat.buffer_size
    for number in range(rounds):
        pushes = WORKERS[: 1 + number % 3]
        count = len(pushes) * (1 if update.delay_compensation is None else 2)
        drawn = [split(torch.randn(length, generator=generator), shards) for _ in range(count)]
        parts = [list(its) for its in zip(*drawn, strict=True)]
        plan = update_plan(
            [8, 3, 5][: len(pushes)],
            pushes,
            number / rounds,
            "asp" if number % 4 > 1 else "bsp",
            [0, 4, 2][: len(pushes)],
        )
        norms = [store.combine(plan, its) for store, its in zip(stores, parts, strict=True)]
        for store in stores:
            store.apply(replace(plan, combined=True), norms)
        assert {store.version for store in stores} == {number + 1}
    return torch.cat([store.publish() for store in stores])


@pytest.mark.parametrize(
    "update",
    [
        {"lr_scaling": "none", "combine": "sum", "clip_norm": 0.5},
        {"optimizer": "adamw", "weight_decay": 0.1, "clip_norm": 1.0},
        {
            "momentum": 0.9,
            "staleness_scaling": "inverse",
            "clip_norm": 1.0,
            "delay_compensation": {"name": "adaptive", "strength": 0.5, "decay": 0.5},
            "phases": {"asp": {"clip_norm": 0.5, "momentum": 0.5}},
        },
    ],
    ids=["sum", "adamw", "stale and in phases"],
)
@pytest.mark.parametrize("shards", [2, 3, 47])
def test_shards_that_tell_norms_equal_one_server(update, shards):
    """To 1e-6, with buffers; of 47 some hold nothing but buffers."""
    settings = Update(lr=0.1, **update)
    assert model().size == 57
    whole = train(model(), 1, settings)
    assert (train(model(), shards, settings) - whole).abs().max().item() < 1e-6
    assert (whole - train(model(), 1, settings, rounds=7)).abs().max().item() > 1e-4, (
        "the last update moves it"
    )


SIZE = 50_021
"""Above what torch gives to one thread, and no multiple of what a processor computes at once."""
OF_NORMS = {"clip_norm", "project_radius"}
EXACT = {
    name: {key: value for key, value in update.items() if key not in OF_NORMS}
    for name, update in UPDATES.items()
}


@pytest.mark.parametrize("update", EXACT.values(), ids=EXACT)
def test_shards_equal_one_server_bit_for_bit_unless_they_tell_norms(update):
    """So a run may have as many servers as keep up, and is the same."""
    long, settings = FlatModel(nn.Linear(SIZE - 1, 1)), Update(lr=0.1, **update)
    whole = train(long, 1, settings, rounds=6)
    assert whole.isfinite().all()
    for shards in (2, 3, 7):
        assert torch.equal(train(long, shards, settings, rounds=6), whole)


@given(st.integers(1, 5000), st.integers(1, 100))
def test_parts_end_where_a_block_does_and_are_as_even_as_that_allows(size, count):
    starts = bounds(size, count)
    assert (starts[0], starts[-1], len(starts)) == (0, size, count + 1)
    lengths = [end - begin for begin, end in pairwise(starts)]
    if size >= BLOCK * count:
        assert all(start % BLOCK == 0 for start in starts[:-1])
        assert max(lengths) - min(lengths) < 2 * BLOCK
        assert min(lengths) > 0
    elif size >= 2 * count:
        assert all(start % 2 == 0 for start in starts[:-1]), "a float64 has two elements"
        assert max(lengths) - min(lengths) <= 2
        assert min(lengths) > 0
    else:
        assert max(lengths) - min(lengths) <= 1
        assert lengths == sorted(lengths, reverse=True)
