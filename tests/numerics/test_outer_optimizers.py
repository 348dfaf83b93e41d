"""The outer optimizers that torch lacks, against their rules written out."""

import torch
from hypothesis import given, settings, strategies as st

from raysync.config import Update
from raysync.training.formats.state_file import decode, encode
from raysync.training.optim.optimizers import check_optimizer
from raysync.training.server.parameter_store import ParameterStore
from tests.builders.updates import update_plan

SIZE = 70_000  # two pieces
rates = {"lr": st.floats(0.01, 1), "momentum": st.floats(0.01, 0.99)}


def delayed_nesterov(theta, deltas, lr, b, n, c):
    m, acc = torch.zeros_like(theta), torch.zeros_like(theta)
    for t, delta in enumerate(deltas):
        acc = acc + delta
        if (t + 1) % n == 0:
            m = b * m + acc / n
            theta = theta - lr * ((1 - c * n + c) * b * m + delta / n)
            acc = torch.zeros_like(acc)
        else:
            theta = theta - lr * (c * b * m + delta / n)
    return theta


def mla(theta, deltas, lr, g):
    m = torch.zeros_like(theta)
    for delta in deltas:
        m = g * m + (1 - g) * delta
        theta = theta - lr * (g * m + delta)
    return theta


def drawn(count):
    generator = torch.Generator().manual_seed(count)
    return torch.rand(count + 1, SIZE, generator=generator, dtype=torch.float64) - 0.5


def trained(update, initial, deltas, stops=()):
    """The weights; at each stop, a fresh store goes on from the state of the one before."""
    store = ParameterStore(initial.float(), SIZE, update)
    for number, delta in enumerate(deltas):
        if number in stops:
            saved = decode(encode(store.state()))
            store = ParameterStore(torch.zeros(SIZE), SIZE, update)
            store.restore(saved)
        store.apply(update_plan([8], version=number + 1), [delta.float()])
    return store.publish()


def check(update, expected, initial, deltas, stop):
    """To 1e-6 of the rule, and the same bits when it goes on from a state."""
    check_optimizer(update)
    done = trained(update, initial, deltas)
    torch.testing.assert_close(done, expected.float(), rtol=1e-6, atol=1e-6)
    assert torch.equal(trained(update, initial, deltas, [stop]), done)


@settings(max_examples=25, deadline=None)
@given(
    **rates,
    every=st.integers(1, 5),
    part=st.floats(0, 1),
    count=st.integers(1, 12),
    stop=st.integers(0, 11),
)
def test_delayed_nesterov(lr, momentum, every, part, count, stop):
    c = part / every
    initial, *deltas = drawn(count)
    optimizer = {"name": "delayed-nesterov", "every": every, "c": c}
    update = Update(optimizer=optimizer, lr=lr, momentum=momentum)
    expected = delayed_nesterov(initial, deltas, lr, momentum, every, c)
    check(update, expected, initial, deltas, stop)


@settings(max_examples=25, deadline=None)
@given(**rates, count=st.integers(1, 12), stop=st.integers(0, 11))
def test_momentum_look_ahead(lr, momentum, count, stop):
    initial, *deltas = drawn(count)
    update = Update(optimizer="mla", lr=lr, momentum=momentum)
    check(update, mla(initial, deltas, lr, momentum), initial, deltas, stop)


def test_delayed_by_one_it_is_torchs_nesterov():
    initial, *deltas = drawn(6)
    optimizer = {"name": "delayed-nesterov", "every": 1}
    delayed = trained(Update(optimizer=optimizer, lr=0.3, momentum=0.9), initial, deltas)
    torchs = Update(lr=0.3, momentum=0.9, nesterov=True, lr_scaling="none")
    torch.testing.assert_close(delayed, trained(torchs, initial, deltas), rtol=1e-6, atol=1e-6)
