"""Further kinds of modules that people have are trained as in plain torch."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import prune

import raysync
from tests.builders.plain_torch import Rows, check_trained_as_alone, net, settings

pytestmark = pytest.mark.usefixtures("one_thread")


class Optional(nn.Module):
    """A branch that is configured away: a weight of shape (0, 5)."""

    def __init__(self):
        super().__init__()
        self.extra, self.net = nn.Linear(5, 0), net()

    def forward(self, x):
        return self.net(torch.cat([x, self.extra(x)], 1))


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"cluster": {"server_shards": 3}},
        *({"cluster": {"wire": wire}} for wire in ("bf16", "int8", "top-k")),
        {"update": {"optimizer": "muon", "lr": 0.01, "momentum": 0.9}},
        {"local": {"steps": 2}},
    ],
    ids=str,
)
def test_parameters_without_elements_are_trained(more, tmp_path):
    record = raysync.run(settings(2, output=str(tmp_path), **more), task=Rows(Optional))
    assert record.summary["status"] == "finished"
    assert record.state_dict()["extra.weight"].shape == (0, 5)


def spectral():
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 6)), nn.Linear(6, 2))


class SharedByEvaluation(nn.Module):
    """The copy that evaluates has the very parameters of the one that trains."""

    def __init__(self):
        super().__init__()
        self.trains = net()
        self.evaluates = net()
        for one, other in zip(self.evaluates, self.trains, strict=True):
            if isinstance(one, nn.Linear):
                one.weight, one.bias = other.weight, other.bias

    def forward(self, x):
        return self.trains(x) if self.training else self.evaluates(x)


class Depth(nn.Module):
    """Leaves blocks out at random, as stochastic depth does."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        for block in self.blocks:
            if not self.training or torch.rand(()) < 0.5:
                x = x + block(x).tanh()
        return self.head(x)


class Experts(nn.Module):
    """Most experts are not used in a batch, and have no gradient then."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(5, 2) for _ in range(6))

    def forward(self, x):
        return self.experts[int(x[0, 0].abs() * 100) % 6](x)


class Adversaries(nn.Module):
    def __init__(self):
        super().__init__()
        self.makes, self.judges = nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.judges(x)


def adversarial(model, batch):
    made = model.makes(torch.randn_like(batch[0]))
    fooled = cross_entropy(nn.functional.linear(made, model.judges.weight.detach()), batch[1])
    return cross_entropy(model(batch[0]), batch[1]) + fooled


def accumulated(model, batch):
    """Runs the backward pass of the first half by itself."""
    x, y = batch
    (cross_entropy(model(x[:4]), y[:4]) / 2).backward()
    return cross_entropy(model(x[4:]), y[4:]) / 2


class Quantised(nn.Module):
    """Rounds its weights in the forward pass, with a running range in buffers."""

    def __init__(self):
        super().__init__()
        self.net = net()
        self.register_buffer("largest", torch.ones(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.steps += 1
            self.largest.lerp_(x.detach().abs().max(), 0.1)
        scale = self.largest / 127
        rounded = (x / scale).round() * scale
        return self.net(x + (rounded - x).detach())


def pruned():
    module = net()
    prune.random_unstructured(module[0], "weight", 0.4)
    return module


@pytest.mark.parametrize(
    ("build", "loss"),
    [
        (spectral, None),
        (pruned, None),
        (SharedByEvaluation, None),
        (Depth, None),
        (Experts, None),
        (Adversaries, adversarial),
        (net, accumulated),
        (Quantised, None),
    ],
    ids=[
        "spectral norm",
        "pruned",
        "shared",
        "depth",
        "experts",
        "adversaries",
        "accumulated",
        "quantised",
    ],
)
def test_further_kinds_are_trained_as_in_plain_torch(build, loss):
    check_trained_as_alone(Rows(build, loss))
