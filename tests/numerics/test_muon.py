"""Muon is torch's on the matrices of hidden layers, and torch's AdamW on all else."""

from math import cos, pi

import pytest
import torch
from torch import nn

from raysync import config
from raysync.config import Update
from raysync.errors import ConfigError
from raysync.training.formats.state_file import decode, encode
from raysync.training.preparation import prepare
from raysync.training.server.parameter_store import shard_of
from raysync.training.vectors.flat import FlatModel
from raysync.training.vectors.parameter_groups import parameters_of
from tests.builders.messages import naming
from tests.builders.updates import update_plan
from tests.builders.virtual import DATA, deep

UPDATES = 6
HIDDEN = {"1.weight": (6, 20), "4.weight": (8, 6), "5.weight": (8, 8)}


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(7, 5),  # (samples, 4, 5)
        nn.Conv1d(4, 6, 5),
        nn.Flatten(),
        nn.LayerNorm(6),
        nn.Linear(6, 8),
        nn.Linear(8, 8, bias=False),
        nn.Linear(8, 3),
    )


def test_hidden_matrices_are_all_but_embeddings_norms_biases_and_the_output_layer():
    named = {each.name: each.matrix for each in parameters_of(network())}
    assert {name: matrix for name, matrix in named.items() if matrix} == HIDDEN
    assert {each.name for each in parameters_of(nn.Linear(3, 2)) if each.matrix} == set()


class Reference:
    """Both optimizers on the module's own parameters, a group each."""

    def __init__(self, module, **muon):
        named = dict(module.named_parameters())
        self.parameters = [*named.values()]
        for name, (rows, columns) in HIDDEN.items():  # a convolution as a matrix
            named[name] = nn.Parameter(named[name].data.view(rows, columns))
        self.groups = {name: {"params": [view]} for name, view in named.items()}
        hidden = [group for name, group in self.groups.items() if name in HIDDEN]
        others = [group for name, group in self.groups.items() if name not in HIDDEN]
        self.optimizers = (
            torch.optim.Muon(hidden, momentum=0.9, **muon),
            torch.optim.AdamW(others, betas=(0.9, 0.95)),
        )

    def step(self, gradient, lr, decay_of, factor_of):
        parts = gradient.split([each.numel() for each in self.parameters])
        for (name, group), part in zip(self.groups.items(), parts, strict=True):
            [view] = group["params"]
            view.grad = part.view_as(view)
            group["lr"], group["weight_decay"] = lr * factor_of(name), decay_of(name)
        for optimizer in self.optimizers:
            optimizer.step()


@pytest.mark.parametrize(
    ("adjust_lr_fn", "nesterov"), [("match_rms_adamw", True), ("original", False)]
)
@pytest.mark.parametrize("stop", [0, 3])
def test_steps_are_torchs_and_go_on_from_a_state_bit_by_bit(adjust_lr_fn, nesterov, stop):
    update = Update(
        optimizer={"name": "muon", "adjust_lr_fn": adjust_lr_fn},
        lr=0.02,
        momentum=0.9,
        nesterov=nesterov,
        betas=(0.9, 0.95),
        weight_decay=0.1,
        no_decay="norm-and-bias",
        schedule="cosine",
        groups=[{"match": ["4.weight", "0.*"], "weight_decay": 0.3, "lr_factor": 0.5}],
    )
    apart = ("4.weight", "0.weight")
    flat, module = FlatModel(network()), network()
    store, reference = (
        shard_of(flat, update),
        Reference(module, adjust_lr_fn=adjust_lr_fn, nesterov=nesterov),
    )
    norms_and_biases = {each.name for each in flat.parameters if each.is_norm_or_bias}
    generator = torch.Generator().manual_seed(1)
    for number in range(UPDATES):
        if number == stop:
            saved = decode(encode(store.state()))
            store = shard_of(flat, update)
            store.restore(saved)
        gradient, progress = torch.randn(flat.size, generator=generator), number / UPDATES
        store.apply(update_plan([8], [None], progress, version=number + 1), [gradient])
        reference.step(
            gradient,
            0.02 * (1 + cos(pi * progress)) / 2,
            lambda name: 0.3 if name in apart else 0.0 if name in norms_and_biases else 0.1,
            lambda name: 0.5 if name in apart else 1.0,
        )
    expected = nn.utils.parameters_to_vector(reference.parameters)
    torch.testing.assert_close(store.publish(), expected, rtol=1e-6, atol=1e-6)
    moved = (expected - nn.utils.parameters_to_vector(network().parameters())).abs()
    assert moved.mean() > 0.01


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"cluster": {"server_shards": 2}}, "update.optimizer: muon server_shards: 2"),
        ({"update": {"optimizer": "muon"}}, "muon momentum"),
        ({"update": {"optimizer": {"name": "muon", "ns_steps": 2.5}, "momentum": 0.9}}, "muon:"),
        ({"update": {"optimizer": {"name": "muon", "steps": 5}, "momentum": 0.9}}, "ns_steps"),
        (
            {"update": {"optimizer": {"name": "muon", "adjust_lr_fn": "rms"}, "momentum": 0.9}},
            "muon: rms",
        ),
    ],
)
def test_it_is_refused_where_it_would_be_another(settings, names):
    common = {"engine": "virtual", "update": {"optimizer": "muon", "momentum": 0.95}}
    with pytest.raises(ConfigError, match=naming(names)):
        prepare(config.validate(common | settings), deep, DATA)
