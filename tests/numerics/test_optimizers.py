"""Which optimizers a server takes, and that they are those of torch."""

import pytest
import torch

from raysync import config
from raysync.config import Update
from raysync.errors import ConfigError
from raysync.training.optim.optimizers import check_optimizer, is_fused
from raysync.training.preparation import prepare
from raysync.training.server.parameter_store import ParameterStore
from tests.builders import optimizers
from tests.builders.messages import naming
from tests.builders.updates import update_plan

OURS, DELAYED = "tests.builders.optimizers:", "delayed-nesterov"
ELEMENTWISE = {
    "ASGD": {"alpha": 0.5},
    "Adadelta": {"rho": 0.8},
    "Adagrad": {"lr_decay": 0.1},
    "Adam": {"amsgrad": True, "eps": 1e-6},
    "AdamW": {"foreach": True},
    "Adamax": {"eps": 1e-6},
    "NAdam": {"momentum_decay": 0.01, "decoupled_weight_decay": True},
    "RAdam": {"eps": 1e-6},
    "RMSprop": {"alpha": 0.9, "centered": True},
    "Rprop": {"etas": [0.4, 1.3]},
    "SGD": {"maximize": True},
    f"{OURS}SignDescent": {"shrink": 0.5},
    f"{OURS}Renamed": {"shrink": 0.5},
    f"{OURS}Hooked": {"shrink": 0.5},
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_optimizer_is_torchs_own(name):
    """To 1e-6 and over several pieces, at a learning rate and a momentum that change."""
    changes = "Rprop" not in name
    settings = {"weight_decay": 0.01} if changes else {}
    settings |= {"momentum": 0.9, "nesterov": True} if name == "SGD" else {}
    settings |= {"momentum": 0.5} if name == "RMSprop" else {}
    settings |= {"betas": (0.8, 0.99)} if name == "AdamW" else {}
    arguments = ELEMENTWISE[name]
    update = Update(
        optimizer={"name": name, **arguments},
        lr=0.05,
        lr_scaling="none",
        schedule="cosine" if changes else "constant",
        **settings,
    )
    check_optimizer(update)
    size = 150_001
    generator = torch.Generator().manual_seed(0)
    initial = torch.randn(size, generator=generator)
    store, alone = ParameterStore(initial, size, update), torch.nn.Parameter(initial.clone())
    kind = getattr(torch.optim, name, None) or getattr(optimizers, name.rpartition(":")[2])
    reference = kind([alone], lr=0.05, **settings, **arguments)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(reference, 6)
    for number in range(5):
        gradient = torch.randn(size, generator=generator)
        store.apply(update_plan([8], progress=number / 6), [gradient])
        alone.grad = gradient
        reference.step()
        if changes:
            cosine.step()
        assert (store.publish() - alone.detach()).abs().max().item() < 1e-6
    assert (alone.detach() - initial).abs().mean().item() > 1e-4


def test_fused_kernels_are_used_where_torch_has_them():
    fused = {name for name in ELEMENTWISE if is_fused(Update(optimizer=name))}
    assert fused == {"SGD", "Adam", "AdamW", "Adagrad"}
    assert not is_fused(Update(optimizer={"name": "adamw", "foreach": True}))
    fixed = ParameterStore(torch.ones(200_000), 200_000, Update()).state()["fixed"]
    assert fixed["parameter groups"] == [[[0, 200_000]]], "in one piece"


@pytest.mark.parametrize(
    ("update", "says"),
    [
        ({"optimizer": "nadma"}, "update.optimizer: optimizer 'nadma' 'nada"),
        ({"optimizer": "LBFGS"}, "LBFGS:"),
        ({"optimizer": "SparseAdam"}, "sparse gradients"),
        ({"optimizer": "Adafactor"}, "Adafactor:"),
        ({"optimizer": {"name": "RMSprop", "aplha": 0.9}}, "'aplha' 'alpha'"),
        ({"optimizer": {"name": "RMSprop", "alpha": -1}}, "RMSprop: alpha value: -1"),
        ({"optimizer": {"name": "sgd", "lr": 0.1}}, "lr update.lr"),
        (
            {"optimizer": {"name": "adam", "betas": [0.9, 0.99]}, "betas": [0.9, 0.99]},
            "betas update.betas",
        ),
        ({"optimizer": "adam", "momentum": 0.9}, "update.momentum: momentum"),
        ({"optimizer": "RMSprop", "momentum": 0.9, "nesterov": True}, "update.nesterov: RMSprop"),
        ({"betas": [0.9, 0.99]}, "update.betas: SGD betas"),
        (
            {"optimizer": "adam", "phases": {"asp": {"momentum": 0.5}}},
            "update.phases.asp.momentum:",
        ),
        ({"optimizer": "Rprop", "weight_decay": 0.1}, "update.weight_decay: Rprop"),
        ({"optimizer": "Rprop", "no_decay": "norm-and-bias"}, "update.no_decay: Rprop"),
        (
            {"optimizer": "Rprop", "groups": [{"match": ["*"], "weight_decay": 0.1}]},
            "update.groups[0].weight_decay: Rprop",
        ),
        ({"optimizer": "Rprop", "lr_scaling": "linear"}, "update.lr_scaling: linear: Rprop"),
        (
            {"optimizer": "Rprop", "lr_scaling": "none", "schedule": "cosine"},
            "update.schedule: cosine: Rprop",
        ),
        (
            {"optimizer": "Rprop", "lr_scaling": "none", "phases": {"asp": {"lr": 1.0}}},
            "update.phases.asp.lr: 1: Rprop lr",
        ),
        ({"optimizer": "delayed-nestrov"}, "'delayed-nestrov' 'delayed-nesterov' mla"),
        ({"optimizer": DELAYED, "momentum": 0.9}, "delayed-nesterov: 'every'"),
        ({"optimizer": {"name": DELAYED, "every": 0}, "momentum": 0.9}, "every: 0: 1"),
        ({"optimizer": {"name": DELAYED, "every": 2.5}, "momentum": 0.9}, "every: 2.5: 1"),
        ({"optimizer": {"name": DELAYED, "every": 4, "c": 0.3}, "momentum": 0.9}, "c: 0.3: 0.25"),
        ({"optimizer": {"name": DELAYED, "every": 4, "c": -1}, "momentum": 0.9}, "c: -1: 0.25"),
        ({"optimizer": "mla", "momentum": 0.9, "nesterov": True}, "update.nesterov: MLA"),
        ({"optimizer": "MLA", "momentum": 0.9, "weight_decay": 0.1}, "update.weight_decay: MLA"),
        ({"optimizer": f"{OURS}Nothing"}, "'Nothing'"),
        ({"optimizer": "tests.builders.models:deep_cnn"}, "tests.builders.models:deep_cnn:"),
        ({"optimizer": "torch:nn"}, "torch:nn: torch.optim.Optimizer"),
        ({"optimizer": "torch.optim:LBFGS"}, "1 argument: 'closure'"),
        ({"optimizer": f"{OURS}Normalised"}, "Normalised:"),
        ({"optimizer": f"{OURS}ByRows"}, "ByRows:"),
        ({"optimizer": f"{OURS}Adaptive", "phases": {"asp": {"weight_decay": 0.1}}}, "Adaptive:"),
        ({"optimizer": f"{OURS}Noisy"}, "Noisy:"),
        ({"optimizer": f"{OURS}Writing"}, "gradient"),
        ({"optimizer": f"{OURS}Replacing"}, "parameters"),
        ({"optimizer": f"{OURS}Forgetful"}, "param_groups"),
        ({"optimizer": f"{OURS}Unpaced"}, "Unpaced:"),
        ({"optimizer": {"name": f"{OURS}Renamed", "shrnk": 2}}, "'shrink'"),
    ],
)
def test_what_a_server_cannot_use_is_refused_before_the_run(update, says):
    """Also without an effect on torch's random numbers."""
    paradigm = {"paradigm": "sync-switch"} if "phases" in update else {}
    experiment = config.validate({"engine": "virtual", "update": update} | paradigm)
    before = torch.get_rng_state()
    with pytest.raises(ConfigError, match=naming(says)) as raised:
        prepare(experiment)
    assert len(str(raised.value).splitlines()) <= 2
    assert torch.equal(torch.get_rng_state(), before)


def test_a_number_without_a_point_is_a_number():
    """YAML 1.1 takes 1e-8 for text."""
    text = "update: {optimizer: {name: Rprop, step_sizes: [1e-6, 5e+1]}}"
    given = config.parse(text, source="x.yaml")
    assert given.update.optimizer.parameters == {"step_sizes": [1e-6, 50.0]}


def test_the_file_names_an_optimizer_as_briefly_as_can_be():
    plain, rich = Update(optimizer="RMSprop"), Update(optimizer={"name": "RMSprop", "alpha": 0.9})
    assert plain.model_dump(mode="json")["optimizer"] == "RMSprop"
    assert rich.model_dump(mode="json")["optimizer"] == {"name": "RMSprop", "alpha": 0.9}
    assert Update(**rich.model_dump(mode="json")) == rich
