"""Batches as a collate function makes them: of any structure, and perhaps of fewer samples."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import Dataset, default_collate

import raysync
from raysync import config
from raysync.core.events import Pushed
from raysync.errors import ConfigError
from raysync.training.data.batch_structure import batch_to, split_batch
from raysync.training.data.sample_counts import SampleCounter
from raysync.training.evaluation import evaluate
from raysync.training.preparation import prepare
from raysync.training.vectors.flat import FlatModel
from raysync.training.worker.gradient import GradientComputation
from tests.builders.messages import naming
from tests.builders.virtual import entries, learn

COUNT, FEATURES = 23, 3


# ---- batches that move themselves ----


class Graphs:
    """As of PyTorch Geometric."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def to(self, device):
        return Graphs(self.x.to(device), self.y.to(device))


class InPlace(Graphs):
    def to(self, device):
        self.x, self.y = self.x.to(device), self.y.to(device)


def pair(kind):
    return kind(torch.ones(2), torch.ones(2))


def to_meta(batch):
    return batch_to(batch, lambda part: part.to("meta"))


@pytest.mark.parametrize("kind", [Graphs, InPlace])
def test_a_batch_with_to_moves_itself_alone_or_within_another(kind):
    alone = to_meta(pair(kind))
    assert (type(alone), alone.x.device.type, alone.y.device.type) == (kind, "meta", "meta")
    moved = to_meta({"graphs": [pair(kind)], "name": "plain", "kind": torch.Tensor})
    assert moved["graphs"][0].x.device.type == "meta"
    assert (moved["name"], moved["kind"]) == ("plain", torch.Tensor)


def test_packed_sequences_keep_their_sizes_on_the_cpu():
    """Otherwise torch refuses them."""
    packed = to_meta((pack_sequence([torch.ones(3, 2), torch.ones(1, 2)]), "plain"))[0]
    assert packed.data.device.type == "meta"
    assert packed.batch_sizes.tolist() == [2, 1, 1]


def test_a_batch_that_is_no_tensors_is_not_cut():
    with pytest.raises(ConfigError, match=naming("Graphs micro_batch")):
        split_batch((pair(Graphs),), [1, 1])


# ---- samples that a collate leaves out ----


class Rows(Dataset):
    """Some are broken."""

    def __init__(self, count=COUNT):
        rng = np.random.default_rng(count)
        self.x = torch.from_numpy(rng.normal(size=(count, FEATURES)).astype(np.float32))
        self.is_broken = rng.random(count) < 0.3
        self.is_broken[:3] = True, False, False

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        row = self.x[index]
        return row, row.sum() ** 2, bool(self.is_broken[index])


def kept(samples):
    return [(x, y) for x, y, is_broken in samples if not is_broken]


@dataclass
class Fields:
    x: torch.Tensor
    y: torch.Tensor


def by_x_and_y(batch):
    return batch.x, batch.y


STRUCTURES = {
    "pairs": (default_collate, tuple),
    "columns": (
        lambda rows: [x[:, None] if x.dim() < 2 else x for x in default_collate(rows)],
        lambda batch: (batch[0], batch[1][:, 0]),
    ),
    "mapping": (
        lambda rows: dict(zip("xy", default_collate(rows), strict=True)),
        lambda batch: (batch["x"], batch["y"]),
    ),
    "object": (lambda rows: Graphs(*default_collate(rows)), by_x_and_y),
    "dataclass": (lambda rows: Fields(*default_collate(rows)), by_x_and_y),
    "rows": (lambda rows: rows, default_collate),
    "two lists": (
        lambda rows: tuple(zip(*rows, strict=True)),
        lambda batch: map(torch.stack, batch),
    ),
    "time first": (
        lambda rows: [x.T if x.dim() > 1 else x[None] for x in default_collate(rows)],
        lambda batch: (batch[0].T, batch[1][0]),
    ),
    "perhaps empty": (
        lambda rows: default_collate(rows) if rows else [torch.ones(0, FEATURES), torch.ones(0)],
        tuple,
    ),
}
"""How samples become a batch, and what is x (n, FEATURES) and y (n,) of it."""


class Leaving(raysync.Task):
    """The mean of what is there, as plain torch computes it."""

    def __init__(self, structure="pairs"):
        self.make, self.tensors_of = STRUCTURES[structure]

    def build_model(self):
        return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))

    def train_set(self):
        return Rows(48)

    def test_set(self):
        return Rows()

    def collate(self, samples):
        return self.make(kept(samples))

    def loss(self, model, batch):
        x, y = self.tensors_of(batch)
        return mse_loss(model(x), y)

    def metrics(self, model, batch):
        x, y = self.tensors_of(batch)
        return {"error": (model(x) - y).abs().mean()}


QUICK = {
    "engine": "virtual",
    "workers": [{"step_s": 0.1}],
    "batch_size": 12,
    "workload": {"samples": 48},
    "evaluation": {"marks": 2, "batch_size": 8},
}


def planned(structure="pairs", **more):
    return prepare(config.validate(QUICK | more), task=Leaving(structure))


def there(samples, indices=None):
    """The samples that are kept, in one batch."""
    return default_collate(kept([samples[index] for index in indices or range(len(samples))]))


@pytest.mark.parametrize(
    ("structure", "batch_size", "workers"),
    [
        *((structure, size, 0) for structure in STRUCTURES for size in (5, 8, 23)),
        ("pairs", 8, 1),
        ("perhaps empty", 1, 0),
    ],
)
def test_an_evaluation_is_the_mean_of_the_samples_that_are_there(structure, batch_size, workers):
    """An empty part has no weight."""
    training = planned(structure)
    module = training.build().eval()
    x, y = there(Rows())
    with torch.no_grad():
        loss, error = mse_loss(module(x), y), (module(x) - y).abs().mean()
    model = FlatModel(training.build())
    measured = evaluate(model, model.initial(), training.task, Rows(), batch_size, None, workers)
    assert measured["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert measured["error"] == pytest.approx(error.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("structure", "devices", "micro_batch"),
    [*product(STRUCTURES, [1, 2], [None, 6]), ("perhaps empty", 1, 1)],
)
def test_a_gradient_is_that_of_the_samples_that_are_there(structure, devices, micro_batch):
    """In parts as whole, as plain torch computes it."""
    training = planned(structure)
    reader = training.reader("worker-0")
    computation = GradientComputation(
        training.build(), training.task, ["cpu"] * devices, micro_batch=micro_batch
    )
    for clock in range(3):
        x, y = there(Rows(48), reader.samples(clock, 12))
        module = training.build()
        expected = mse_loss(module(x), y)
        loss = computation.compute(reader, clock, 12)
        gradient = torch.autograd.grad(expected, module.parameters())
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        flat = torch.cat([each.reshape(-1) for each in gradient])
        torch.testing.assert_close(computation.outgoing(), flat, atol=1e-6, rtol=1e-5)


def test_a_push_counts_for_the_samples_that_were_asked_for():
    """So batches and workload are a function of (seed, slot, number)."""
    training = planned()
    lines, _ = learn(training)
    assert lines[-1].status == "finished"
    assert [entry.event.samples for entry in entries(lines, Pushed)] == [12] * 4


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 40), st.sampled_from(sorted(STRUCTURES)))
def test_what_is_there_is_counted(asked, left_out, structure):
    """In whatever structure, with sizes that equal others by chance."""
    rows = [(x, y) for x, y, _ in map(Rows(40).__getitem__, range(40))]
    make, _ = STRUCTURES[structure]
    counter = SampleCounter(lambda index, copies: make([rows[index]] * copies), range)
    count = max(1, asked - left_out)
    assert counter(make(rows[:count]), asked) == count


def test_other_sizes_are_no_samples():
    """Of images that have different sizes, or of several views of each sample."""
    images = [torch.ones(3, 8, width) for width in (4, 4, 4, 4)]
    counter = SampleCounter(lambda index, copies: images[:1] * copies, range)
    assert counter(images, 4) == 4
    assert counter(images[:3], 4) == 3
    twice = SampleCounter(lambda index, copies: torch.ones(2 * copies, 5), range)
    assert twice(torch.ones(8, 5), 4) == 4
    assert twice(torch.ones(6, 5), 4) == 4  # not known
    unlike = SampleCounter(lambda index, copies: 1 / 0, range)
    assert unlike(torch.ones(3), 4) == 4


def test_a_full_batch_is_counted_without_another_one():
    def never(index, copies):
        raise AssertionError

    assert SampleCounter(never, range)(default_collate([(torch.ones(3), 1)] * 5), 5) == 5
