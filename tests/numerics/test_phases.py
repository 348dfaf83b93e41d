"""What holds in a phase of the paradigm, against the recursion of SGD with momentum written out."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from raysync.config import MomentumRamp, Update
from raysync.training.optim.lr_schedule import momentum
from raysync.training.server.parameter_store import ParameterStore
from tests.builders.updates import update_plan

PHASES = {
    "bsp": {},
    "still": {"momentum": 0.0, "lr": 0.02},
    "strange": {"momentum": 0.5, "lr_scaling": "none", "clip_norm": 0.7, "weight_decay": 0.0},
    "ramp": {"momentum_ramp": {"name": "linear", "over": 0.3, "start": 0.1}},
    "doubling": {
        "momentum": 0.8,
        "momentum_ramp": {"name": "exponential", "over": 0.3, "start": 0.1},
    },
}
SWITCHING = Update(lr=0.1, momentum=0.9, weight_decay=0.01, phases=PHASES)
UPDATES = 10


def by_hand(updates, sizes):
    """One parameter that begins at 1: v = m v + g + decay x; x = x - lr v."""
    x, v, before, began = 1.0, 0.0, "", 0.0
    for number, (phase, gradients) in enumerate(updates):
        progress = number / UPDATES
        if phase != before:
            before, began = phase, progress
        risen = min(1.0, (progress - began) / 0.3)
        m = {
            "still": 0.0,
            "strange": 0.5,
            "ramp": 0.1 + 0.8 * risen,
            "doubling": 0.1 * 8**risen,
        }.get(phase, 0.9)
        weights = sizes[: len(gradients)]
        g = sum(gradient * size for gradient, size in zip(gradients, weights, strict=True)) / sum(
            weights
        )
        scale = 0.02 * len(gradients) if phase == "still" else 0.1 * len(gradients)
        if phase == "strange":
            g, scale = max(-0.7, min(0.7, g)), 0.1
        v = m * v + g + (0.0 if phase == "strange" else 0.01) * x
        x -= scale * v
    return x


def apply(store, phase, gradients, sizes, progress):
    plan = update_plan(sizes[: len(gradients)], progress=progress, phase=phase)
    store.apply(plan, [torch.tensor([g]) for g in gradients])
    return store.publish()[0].item()


gradients = st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=3)


@given(
    st.lists(
        st.tuples(st.sampled_from(["", *PHASES]), gradients), min_size=UPDATES, max_size=UPDATES
    )
)
@settings(max_examples=60, deadline=None)
def test_phases_change_settings_and_nothing_else(updates):
    """The momentum buffer goes on over every switch, also out of a phase without momentum; ramps
    begin with their phase.
    """
    store, sizes = ParameterStore(torch.ones(1), 1, SWITCHING), [1, 3, 2]
    for number, (phase, pushed) in enumerate(updates):
        x = apply(store, phase, pushed, sizes, number / UPDATES)
    assert x == pytest.approx(by_hand(updates, sizes), abs=1e-5)


@pytest.mark.parametrize(
    ("ramp", "since", "expected"),
    [
        (None, 0.0, 0.9),
        ({"name": "linear", "over": 0.2}, 0.0, 0.0),
        ({"name": "linear", "over": 0.2}, 0.05, 0.225),
        ({"name": "linear", "over": 0.2, "start": 0.1}, 0.1, 0.5),
        ({"name": "linear", "over": 0.2}, 0.3, 0.9),
        ({"name": "exponential", "over": 0.3, "start": 0.1125}, 0.0, 0.1125),
        ({"name": "exponential", "over": 0.3, "start": 0.1125}, 0.1, 0.225),
        ({"name": "exponential", "over": 0.3, "start": 0.1125}, 0.2, 0.45),
        ({"name": "exponential", "over": 0.3, "start": 0.1125}, 0.3, 0.9),
    ],
)
def test_ramps_rise_to_the_full_momentum(ramp, since, expected):
    update = Update(momentum=0.9, momentum_ramp=None if ramp is None else MomentumRamp(**ramp))
    assert momentum(update, since) == pytest.approx(expected)


KINDS = {
    "sgd": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


@given(
    st.sampled_from([*KINDS]),
    st.lists(gradients, min_size=1, max_size=8),
    st.sampled_from([{}, {"phases": {"asp": {}}}]),
)
@settings(max_examples=40, deadline=None)
def test_what_is_not_asked_for_changes_no_bit(name, rounds, neutral):
    """A fused optimizer of torch, fed with the mean as it was made before there were phases."""
    more = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {"lr_scaling": "linear"}
    update = Update(optimizer=name, lr=0.1, weight_decay=0.1, **more, **neutral)
    store, alone = ParameterStore(torch.arange(3.0), 3, update), nn.Parameter(torch.arange(3.0))
    optimizer = KINDS[name]([alone], weight_decay=0.1, fused=True)
    for pushed in rounds:
        vectors = [torch.tensor([g, 2 * g, -g]) for g in pushed]
        mean, count = vectors[0].clone(), len(vectors)
        for number, vector in enumerate(vectors[1:], 2):
            mean = torch.lerp(mean, vector, 5 / (5 * number))
        alone.grad = mean
        optimizer.param_groups[0]["lr"] = count * 0.1
        optimizer.step()
        store.apply(update_plan([5] * count, phase="asp", staleness=[7] * count), vectors)
        assert torch.equal(store.publish(), alone.detach())
