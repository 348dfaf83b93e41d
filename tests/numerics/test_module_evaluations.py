"""An evaluation measures a module as plain torch does, whatever it caches, merges or derives."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import raysync
from tests.builders.plain_torch import Rows, net, recorded, rows, settings

pytestmark = pytest.mark.usefixtures("one_thread")


def slopes(model, batch):
    place = batch[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(place).sum(), place, create_graph=True)
    return mse_loss(slope, torch.ones_like(slope))


@pytest.mark.parametrize("measured", [False, True], ids=["loss", "metrics"])
def test_a_loss_about_the_slope_by_the_input_is_trained_and_evaluated(measured, tmp_path):
    own = (lambda model, batch: {"loss": slopes(model, batch)}) if measured else None
    task = Rows(net, slopes, own)
    record, module = recorded(task, tmp_path)
    expected = slopes(module.eval(), rows(1, 32).tensors).item()
    assert record.summary["final_loss"] == pytest.approx(expected, abs=1e-5)
    assert not any(p.grad is not None for p in record.model(net()).parameters())


class Folded(nn.Module):
    """Multiplies its layers once for evaluation, and drops that in `train`, or in training."""

    def __init__(self, place="attribute", drops="train"):
        super().__init__()
        self.a, self.b = nn.Linear(5, 5, bias=False), nn.Linear(5, 2)
        self.drops = drops
        if place == "buffer":
            self.register_buffer("kernel", None, persistent=False)
        else:
            self.kernel = None

    def train(self, mode=True):
        super().train(mode)
        if mode and self.drops == "train":
            self.kernel = None
        return self

    def forward(self, x):
        if self.training:
            self.kernel = None
            return self.b(self.a(x))
        if self.kernel is None:
            self.kernel = (self.b.weight @ self.a.weight).detach()
        return nn.functional.linear(x, self.kernel, self.b.bias)


class Merging(nn.Module):
    """Merges a low-rank change into its weight for evaluation, as LoRA does."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(5, 2)
        self.base.weight.requires_grad_(False)
        self.up, self.down = nn.Parameter(torch.ones(2, 1)), nn.Parameter(torch.ones(1, 5))
        self.is_merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.is_merged:
            with torch.no_grad():
                self.base.weight += (-1 if mode else 1) * self.up @ self.down
            self.is_merged = not mode
        return self

    def forward(self, x):
        output = self.base(x)
        return output if self.is_merged else output + x @ (self.up @ self.down).T


@pytest.mark.parametrize(
    "build",
    [
        Folded,
        lambda: Folded("buffer"),
        lambda: Folded(drops="in training"),
        lambda: Folded("buffer", "in training"),
        Merging,
    ],
    ids=["folded", "in a buffer", "lazily", "in a buffer, lazily", "merged"],
)
def test_what_an_evaluation_caches_is_of_its_own_weights(build, tmp_path):
    record, module = recorded(Rows(build), tmp_path, evaluation={"marks": 3})
    x, y = rows(1, 32).tensors
    expected = cross_entropy(module.eval()(x), y).item()
    assert record.summary["final_loss"] == pytest.approx(expected, abs=1e-5)
    assert record.evaluations.loss.nunique() == len(record.evaluations)


class Weighted(Rows):
    """Weighs its loss by the number of its training steps."""

    def __init__(self):
        super().__init__(net)
        self.steps = 0

    def loss(self, model, batch):
        self.steps += model.training
        return (1 + self.steps) * super().loss(model, batch)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_evaluation_has_the_initial_attributes_of_the_task(workers, tmp_path):
    record = raysync.run(settings(workers, output=str(tmp_path)), task=Weighted())
    x, y = rows(1, 32).tensors
    expected = cross_entropy(record.model(net()).eval()(x), y).item()
    assert record.summary["final_loss"] == pytest.approx(expected, abs=1e-5)
