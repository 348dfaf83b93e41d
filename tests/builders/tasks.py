"""Tasks of a user."""

import random

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset, IterableDataset

import raysync

FEATURES = 4


class Words(Dataset):
    """Sequences of different length, the target of each being the sum of its numbers; those for
    training are read with noise from each of the global generators.
    """

    def __init__(self, count, noisy=False, seed=0):
        rng = np.random.default_rng(seed)
        self.rows = [
            rng.normal(size=(length, FEATURES)).astype(np.float32)
            for length in rng.integers(1, 5, size=count)
        ]
        self.noisy = noisy

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = torch.from_numpy(self.rows[index])
        y = row.sum()
        if self.noisy:
            row = row + 0.01 * (torch.randn(1).item() + np.random.normal() + random.random())
        return {"x": row, "y": y}


def padded(samples):
    return {
        "x": nn.utils.rnn.pad_sequence([sample["x"] for sample in samples], batch_first=True),
        "y": torch.stack([sample["y"] for sample in samples]),
        "lengths": [len(sample["x"]) for sample in samples],  # no tensor: it stays as it is
    }


class SumUp(nn.Module):
    """Padding adds nothing to its output."""

    def __init__(self, width=3):
        super().__init__()
        self.inner, self.outer = nn.Linear(FEATURES, width, bias=False), nn.Linear(width, 1)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)).sum(dim=1)).squeeze(1)


class Sums(raysync.Task):
    """Dicts with padded sequences, a loss of its own, and a metric of its own."""

    primary = "mae"

    def __init__(self, width=3, samples=24, noisy=True):
        self.width, self.samples, self.noisy = width, samples, noisy

    def build_model(self):
        return SumUp(self.width)

    def train_set(self):
        return Words(self.samples, self.noisy)

    def test_set(self):
        return Words(7, seed=1)

    def collate(self, samples):
        return padded(samples)

    def loss(self, model, batch):
        assert isinstance(batch["lengths"], list)
        return mse_loss(model(batch["x"]), batch["y"])

    def metrics(self, model, batch):
        return {"mae": (model(batch["x"]) - batch["y"]).abs().mean()}


class Validated(Sums):
    """It has a validation set, too."""

    def validation_set(self):
        return Words(5, seed=2)


class Cut(raysync.Task):
    """Its loss is one of the model's output, so that it can be cut into stages."""

    def build_model(self):
        return nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 1))

    def train_set(self):
        return Pairs(24)

    def test_set(self):
        return Pairs(6)

    def criterion(self, output, batch):
        return mse_loss(output.squeeze(1), batch[1])


class Chosen(Cut):
    """Some of its samples, by weights; its sampler cannot travel."""

    def __init__(self):
        self.weights = [float(index % 3) for index in range(24)]
        self.weights[5] = 20.0

    def sampler(self, samples):
        return torch.utils.data.WeightedRandomSampler(self.weights, 24)


class Pairs(Dataset):
    """Pairs (x, y), the sum of x."""

    def __init__(self, count):
        self.x = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(count))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.x[index].sum()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))


class NoLength(Dataset):
    def __getitem__(self, index):
        return index


def not_a_task():
    return 3
