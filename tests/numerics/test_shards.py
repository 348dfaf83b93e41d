"""A model split among several stores learns as a whole one does."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, strategies as st
from msgspec.structs import replace
from torch import nn

from raysync.config import Update
from raysync.training.server.parameter_store import ParameterStore, shard_of
from raysync.training.vectors.flat import FlatModel
from raysync.training.vectors.parts import BLOCK, bounds, spans
from tests.builders.updates import update_plan

WORKERS = ["a#1", "b#1", "c#1"]


def model():
    torch.manual_seed(0)
    return FlatModel(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)))


def split(vector, shards):
    return [vector[span] for span in spans(len(vector), shards)]


def train(shards, update, rounds=8):
    """What the shards have published after some updates with the same gradients."""
    flat = model()
    stores = [shard_of(flat, update, index, shards) for index in range(shards)]
    generator = torch.Generator().manual_seed(1)
    compensates = update.delay_compensation is not None
    for number in range(rounds):
        pushes = WORKERS[: 1 + number % 3]
        vectors = [
            split(torch.randn(flat.size + flat.buffer_size, generator=generator), shards)
            for _ in pushes
        ]
        parts = [list(its) for its in zip(*vectors, strict=True)]
        kept = [[part.clone() for part in its] for its in parts]
        bases = [
            split(torch.randn(flat.size + flat.buffer_size, generator=generator), shards)
            for _ in (pushes if compensates else ())
        ]
        plan = update_plan(
            [8, 3, 5][: len(pushes)],
            pushes,
            number / rounds,
            "asp" if number % 4 > 1 else "bsp",
            [0, 4, 2][: len(pushes)],
        )
        norms = [
            store.combine(plan, [*its, *its_bases])
            for store, its, *its_bases in zip(stores, parts, *bases, strict=True)
        ]
        for store in stores:
            store.apply(replace(plan, combined=True), norms)
        assert {store.version for store in stores} == {number + 1}
        assert all(
            torch.equal(part, copy)
            for its, copies in zip(parts, kept, strict=True)
            for part, copy in zip(its, copies, strict=True)
        ), "what arrived is for reading only"
    return torch.cat([store.publish() for store in stores])


@pytest.mark.parametrize(
    "update",
    [
        Update(lr=0.1, momentum=0.9, weight_decay=0.01),
        Update(lr=0.1, lr_scaling="none", combine="sum", clip_norm=0.5),
        Update(optimizer="adamw", lr=0.01, weight_decay=0.1, clip_norm=1.0),
        Update(
            lr=0.1,
            momentum=0.9,
            staleness_scaling="inverse",
            clip_norm=1.0,
            delay_compensation={"name": "adaptive", "strength": 0.5, "decay": 0.5},
            phases={"asp": {"clip_norm": 0.5, "momentum": 0.5}},
        ),
    ],
    ids=["momentum", "sum and clip", "adamw and clip", "stale and in phases"],
)
@pytest.mark.parametrize("shards", [2, 3, 47])
def test_shards_equal_one_server(update, shards):
    """To 1e-6, with buffers; of 47 some hold nothing but buffers."""
    assert model().size == 57
    whole = train(1, update)
    assert (train(shards, update) - whole).abs().max().item() < 1e-6
    assert (whole - train(1, update, rounds=7)).abs().max().item() > 1e-4, (
        "the last update moves it"
    )


SIZE = 50_021
"""Above what torch gives to one thread, and no multiple of what a processor computes at once."""
EXACT = {
    "momentum": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "sum": {"combine": "sum", "lr_scaling": "none"},
    "scaled": {"staleness_scaling": "inverse", "momentum": 0.9},
    "constant": {"delay_compensation": "constant"},
    "adaptive": {"delay_compensation": "adaptive", "staleness_scaling": "inverse"},
} | {
    name: {"optimizer": name, "lr_scaling": "none"}
    for name in (
        "ASGD",
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
    )
}


@pytest.mark.parametrize("update", EXACT.values(), ids=EXACT)
def test_shards_equal_one_server_bit_for_bit_unless_they_tell_norms(update):
    """So a run may have as many servers as keep up, and is the same."""
    settings = Update(lr=0.1, **update)
    compensates = settings.delay_compensation is not None

    def published(shards):
        generator = torch.Generator().manual_seed(0)
        stores = [
            ParameterStore(part.clone(), len(part), settings)
            for part in split(torch.randn(SIZE, generator=generator), shards)
        ]
        for number in range(6):
            pushes = 1 + number % 3
            drawn = [
                split(torch.randn(SIZE, generator=generator), shards) for _ in range(2 * pushes)
            ]
            staleness = [0, 4, 2][:pushes]
            plan = update_plan([8, 3, 5][:pushes], progress=number / 6, staleness=staleness)
            for store, *parts in zip(stores, *drawn, strict=True):
                store.apply(plan, parts if compensates else parts[:pushes])
        return torch.cat([store.publish() for store in stores])

    whole = published(1)
    assert whole.isfinite().all()
    for shards in (2, 3, 7):
        assert torch.equal(published(shards), whole)


@pytest.mark.parametrize("shards", [1, 2, 5, 68])
def test_parts_tile_the_vector_evenly(shards):
    flat = model()
    stores = [shard_of(flat, Update(), index, shards) for index in range(shards)]
    parts = [store.publish() for store in stores]
    assert torch.equal(torch.cat(parts), flat.initial())
    assert max(map(len, parts)) - min(map(len, parts)) <= (2 if shards > 4 else 2 * BLOCK)
    fixed = [store.state()["fixed"] for store in stores]
    assert sum(each["parameters"] for each in fixed) == flat.size
    slots = [each["elements of buffers"] for each in fixed]
    assert [sum(each) for each in zip(*slots, strict=True)] == [10, 0, 2]
    flat.read_weights(*(torch.full_like(part, index) for index, part in enumerate(parts)))
    assert torch.equal(
        flat.weights,
        torch.cat([torch.full((len(p),), float(i)) for i, p in enumerate(parts)])[: flat.size],
    )


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
