"""Parameter groups: as torch's own, however the flat vector is cut."""

from itertools import pairwise
from math import cos, pi

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from raysync import config
from raysync.config import Update
from raysync.decoupled.pipelined_topology import server_of
from raysync.decoupled.plan import check_training
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.training.preparation import prepare
from raysync.training.server.apply_plan import MEAN, ApplyPlan
from raysync.training.server.model_server import ModelServer
from raysync.training.server.parameter_store import shard_of
from raysync.training.vectors.flat import FlatModel
from raysync.training.vectors.parameter_groups import parameter_groups, parameters_of, within
from raysync.training.vectors.parts import spans
from tests.builders.messages import naming
from tests.builders.virtual import DATA, deep, learn, weights_of

UPDATES = 12
GROUPS = {
    "groups": [
        {"match": ["0.*"], "lr_factor": 0.5},
        {"match": ["*.bias", "5.weight"], "weight_decay": 0.3, "lr_factor": 2.0},
    ],
    "no_decay": "norm-and-bias",
}
EXPECTED = {  # name -> weight decay (None: that of the phase), factor of the learning rate
    "0.weight": (None, 0.5),
    "0.bias": (0.0, 0.5),
    "1.weight": (0.0, 1.0),
    "1.bias": (0.3, 2.0),
    "3.weight": (None, 1.0),
    "3.bias": (0.3, 2.0),
    "4.weight": (0.0, 1.0),
    "4.bias": (0.3, 2.0),
    "5.weight": (0.3, 2.0),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 4),
        nn.BatchNorm1d(4),
        nn.Tanh(),
        nn.Linear(4, 6),
        nn.LayerNorm(6),
        nn.Linear(6, 3, bias=False),
    )


KINDS = {
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {}),
    "RMSprop": (torch.optim.RMSprop, {"momentum": 0.5}),
    "NAdam": (torch.optim.NAdam, {}),
    "Adagrad": (torch.optim.Adagrad, {}),
}


@pytest.mark.parametrize("shards", [1, 3, 40])
@pytest.mark.parametrize("name", KINDS)
def test_groups_are_torchs_param_groups(name, shards):
    """To 1e-6 against torch on the network's own parameters: with a schedule, the linear scale, two
    phases and, for sgd, a momentum that rises.
    """
    kind, arguments = KINDS[name]
    risen = {"momentum_ramp": {"name": "linear", "over": 0.25}} if name == "sgd" else {}
    update = Update(
        optimizer=name,
        lr=0.02,
        lr_scaling="linear",
        weight_decay=0.1,
        schedule="cosine",
        phases={"asp": {"lr": 0.01, "weight_decay": 0.05} | risen},
        **arguments,
        **GROUPS,
    )
    flat, module = FlatModel(network()), network()
    servers = [ModelServer(shard_of(flat, update, index, shards)) for index in range(shards)]
    named = dict(module.named_parameters())
    assert named.keys() == EXPECTED.keys()
    reference = kind([{"params": [each]} for each in named.values()], **arguments, lr=0.02)
    generator = torch.Generator().manual_seed(1)
    for number in range(UPDATES):
        pushes, progress = 1 + number % 3, number / UPDATES
        phase, lr, decay = ("bsp", 0.02, 0.1) if number < 6 else ("asp", 0.01, 0.05)
        gradients = torch.randn(pushes, flat.size + flat.buffer_size, generator=generator)
        plan = ApplyPlan([None] * pushes, [8] * pushes, progress, phase, [0] * pushes, number + 1)
        for server, span in zip(servers, spans(gradients.shape[1], shards), strict=True):
            server.apply(plan, [*gradients[:, span]])
        means = gradients.mean(dim=0)[: flat.size].split([each.numel() for each in named.values()])
        for group, own, mean in zip(reference.param_groups, EXPECTED.values(), means, strict=True):
            parameter = group["params"][0]
            parameter.grad = mean.view_as(parameter)
            group["lr"] = own[1] * pushes * lr * (1 + cos(pi * progress)) / 2
            group["weight_decay"] = decay if own[0] is None else own[0]
            if risen and number >= 6:
                group["momentum"] = max(1e-45, min(0.9, 0.9 * (progress - 0.5) / 0.25))
        reference.step()
        got = torch.cat([server.publish(number + 1, MEAN) for server in servers])[: flat.size]
        expected = nn.utils.parameters_to_vector(module.parameters())
        assert (got - expected).abs().max().item() < 1e-6


PATTERNS = ["*", "*.weight", "*.bias", "[03].*", "?.weight", "1.*", "3.bias", "none"]
some_groups = st.lists(
    st.builds(
        lambda match, decay, factor: {"match": match, "weight_decay": decay, "lr_factor": factor},
        st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2),
        st.sampled_from([None, 0.0, 0.1]),
        st.sampled_from([1.0, 0.5]),
    ),
    max_size=3,
)


@given(some_groups, st.sampled_from([None, "norm-and-bias"]), st.integers(1, 30))
def test_slices_tile_the_vector_and_are_as_few_as_can_be(groups, no_decay, shards):
    """Also in the parts of several servers, and in the pieces of an optimizer that is not fused."""
    parameters = parameters_of(network())
    size = sum(each.size for each in parameters)
    found = parameter_groups(Update(groups=groups, no_decay=no_decay), parameters)
    settings = [(group.weight_decay, group.lr_factor) for group in found]
    assert len({*settings}) == len(settings)

    def painted(groups, length):
        """The settings of each element, of which each is in exactly one slice."""
        elements = [None] * length
        for group in groups:
            for piece in group.pieces(5):
                assert piece.stop - piece.start <= 5
                for index in range(piece.start, piece.stop):
                    assert elements[index] is None
                    elements[index] = (group.weight_decay, group.lr_factor)
        return elements

    whole = painted(found, size)
    assert None not in whole
    assert sum(len(group.spans) for group in found) == 1 + sum(
        one != other for one, other in pairwise(whole)
    )
    edges = [size * index // shards for index in range(shards + 1)]
    parts = [painted(within(found, *edge), edge[1] - edge[0]) for edge in pairwise(edges)]
    assert [each for part in parts for each in part] == whole


def test_no_decay_spares_norms_biases_and_what_has_no_two_dimensions():
    """As timm does by dimensions and names, and Hugging Face by the type of the layer."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.bias = nn.Parameter(torch.zeros(2, 3))
            self.table = nn.Parameter(torch.zeros(2, 3))

    module = nn.ModuleDict(
        {
            "conv": nn.Conv2d(2, 2, 1),
            "layer": nn.LayerNorm((2, 3)),
            "group": nn.GroupNorm(1, 2),
            "instance": nn.InstanceNorm2d(2, affine=True),
            "embedding": nn.Embedding(3, 2),
            "own": Scaled(),
        }
    )
    decays = [each.name for each in parameters_of(module) if not each.is_norm_or_bias]
    assert decays == ["conv.weight", "embedding.weight", "own.table"]


class Hidden(nn.Module):
    """Lists in `sequence` what it does not register."""

    def __init__(self):
        super().__init__()
        self.first, hidden = nn.Linear(3, 3), nn.Linear(3, 4)
        self.sequence = [self.first, hidden]

    def forward(self, x):
        return self.sequence[1](self.first(x))


def test_parameters_without_a_name_cannot_be_matched_in_a_stage():
    settings = {"engine": "virtual", "workers": [{"count": 2, "step_s": 1}]}
    named = settings | {"update": {"groups": [{"match": ["first.*"], "lr_factor": 2}]}}
    paradigm = make("decoupled", modules=2)
    check_training(prepare(config.validate(settings), Hidden, DATA), paradigm)
    with pytest.raises(ConfigError, match=naming("update.groups: model's `sequence`")):
        check_training(prepare(config.validate(named), Hidden, DATA), paradigm)


STAGES = [server_of(1), server_of(2)]


@pytest.mark.parametrize(
    ("paradigm", "servers"),
    [
        ({"paradigm": "bsp"}, ["server"]),
        ({"paradigm": "decoupled", "modules": 2}, STAGES),
        ({"paradigm": "decoupled", "modules": 2, "groups": 2, "mix": "weight"}, STAGES),
    ],
    ids=["bsp", "decoupled", "gossip"],
)
def test_in_a_run_a_factor_of_0_keeps_what_it_matches(paradigm, servers):
    """Stages know their parameters by the names of the whole."""
    settings = {
        "engine": "virtual",
        "batch_size": 4,
        "workers": [{"name": "gpu", "count": 2 * paradigm.get("groups", 1), "step_s": 0.12}],
        "workload": {"samples": 80},
        "update": {"lr": 0.05, "groups": [{"match": ["2.*"], "lr_factor": 0}]},
    }
    training = prepare(config.validate(settings), deep, DATA)
    initial = FlatModel(training.build()).initial()
    _, driver = learn(training, **paradigm)
    trained = torch.cat([weights_of(driver, server) for server in servers])
    moved = (trained - initial).split([12, 4, 16, 4, 16, 4, 16, 4])
    assert [bool(each.any()) for each in moved] == [True, True, False, False] + 4 * [True]


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        ([{"match": ["0.*", "2.wieght"]}], "update.groups[0].match: '2.wieght' '2.weight'"),
        ([{"match": ["Bias"]}], "update.groups[0].match: 'Bias'"),
        (
            [{"match": ["*.bias"]}, {"match": ["0.bias", "2.bias"], "lr_factor": 2}],
            "update.groups[1]:",
        ),
    ],
)
def test_groups_without_parameters_are_refused_before_the_run(groups, says):
    with pytest.raises(ConfigError, match=naming(says)):
        prepare(config.validate({"update": {"groups": groups}}), deep, DATA)


@pytest.mark.parametrize(
    ("group", "says"),
    [
        ({}, "update.groups[0].match:"),
        ({"match": []}, "update.groups[0].match:"),
        ({"match": ["*"], "lr_factor": -1}, "0 -1"),
        ({"match": ["*"], "lr": 1}, "update.groups[0].lr:"),
    ],
)
def test_a_group_that_is_no_group(group, says):
    with pytest.raises(ConfigError, match=naming(says)):
        config.validate({"update": {"groups": [group]}})
