"""Rules for stale gradients, against their formulas written out."""

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from raysync.config import Update
from raysync.training.server.parameter_store import ParameterStore
from tests.builders.updates import update_plan

SIZE = 4
vectors = arrays(np.float32, SIZE, elements=st.floats(-2, 2, width=32))
pushes = st.lists(
    st.tuples(vectors, vectors, st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=3
)
"""Of one update: gradient, base weights, staleness, samples."""


def tensor(values):
    return torch.from_numpy(np.append(values, 9.0).astype(np.float32))  # a buffer behind it


def train(updates, members=1, **update):
    """The parameters after plain SGD at a rate of 0.1, and that nothing which arrived was written
    to.
    """
    store = ParameterStore(tensor(np.ones(SIZE)), SIZE, Update(lr=0.1, lr_scaling="none", **update))
    for one in updates:
        arrived, bases = [tensor(g) for g, *_ in one], [tensor(base) for _, base, *_ in one]
        plan = update_plan(
            [samples for *_, samples in one],
            staleness=[behind for _, _, behind, _ in one],
            members=members,
        )
        store.apply(plan, [*arrived, *bases] if update.get("delay_compensation") else arrived)
        assert all(torch.equal(got, tensor(g)) for got, (g, *_) in zip(arrived, one, strict=True))
        assert all(
            torch.equal(got, tensor(base)) for got, (_, base, *_) in zip(bases, one, strict=True)
        )
    return store.publish()[:SIZE].numpy()


def by_hand(updates, corrected):
    """The same in double precision, with `corrected(g, x - base, staleness)` in place of each
    gradient.
    """
    x = np.ones(SIZE)
    for one in updates:
        done = [
            samples * corrected(g.astype(float), x - base, behind)
            for g, base, behind, samples in one
        ]
        x = x - 0.1 * sum(done) / sum(samples for *_, samples in one)
    return x


SCALES = {
    "Zhang et al. 2016": ("inverse", lambda behind, _: 1 / max(1, behind)),
    "Xie et al. 2019": ({"name": "power", "exponent": 0.7}, lambda behind, _: (1 + behind) ** -0.7),
    "Mishchenko et al. 2022": (
        "delay-adaptive",
        lambda behind, members: min(1, members / behind) if behind else 1,
    ),
}
"""Where a rule is from -> its name, and the factor of a push by its staleness and the workers."""


@pytest.mark.parametrize(("scaling", "factor"), SCALES.values(), ids=SCALES)
@given(updates=st.lists(pushes, min_size=1, max_size=4), members=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_a_push_counts_by_its_staleness(scaling, factor, updates, members):
    """It is scaled before the mean."""
    expected = by_hand(updates, lambda g, moved, behind: g * factor(behind, members))
    done = train(updates, members, staleness_scaling=scaling)
    assert done == pytest.approx(expected, abs=1e-5)


@given(st.lists(pushes, min_size=1, max_size=4), st.sampled_from(["none", "inverse"]))
@settings(max_examples=40, deadline=None)
def test_dc_asgd_c(updates, scaling):
    """g + lambda g g (x - x_base), and then the scale."""
    expected = by_hand(
        updates,
        lambda g, moved, behind: (
            (g + 0.2 * g * g * moved) / (max(1, behind) if scaling == "inverse" else 1)
        ),
    )
    done = train(
        updates, delay_compensation={"name": "constant", "strength": 0.2}, staleness_scaling=scaling
    )
    assert done == pytest.approx(expected, abs=1e-4)


@given(st.lists(pushes, min_size=1, max_size=4), st.sampled_from([0.0, 0.5, 0.95]))
@settings(max_examples=40, deadline=None)
def test_dc_asgd_a(updates, decay):
    """lambda_0 / sqrt(MS + 1e-7), where MS takes in one push after the other, each before it is
    used.
    """
    mean_square = np.zeros(SIZE)

    def corrected(g, moved, behind):
        mean_square[:] = decay * mean_square + (1 - decay) * g * g
        return g + 0.2 / np.sqrt(mean_square + 1e-7) * g * g * moved

    expected = by_hand(updates, corrected)
    done = train(updates, delay_compensation={"name": "adaptive", "strength": 0.2, "decay": decay})
    assert done == pytest.approx(expected, abs=2e-4)


def test_figures():
    """x = 1, base 0, g = 2, staleness 4: by 0.1 x 2 / 4; with lambda 0.5 by 0.1 x (2 + 0.5 x 4);
    -a, decay 0.75: MS = 1.
    """
    push = [[(np.full(SIZE, 2.0), np.zeros(SIZE), 4, 8)]]
    assert train(push)[0] == pytest.approx(0.8)
    assert train(push, staleness_scaling="inverse")[0] == pytest.approx(0.95)
    assert train(push, delay_compensation={"strength": 0.5})[0] == pytest.approx(0.6)
    adaptive = {"name": "adaptive", "strength": 0.5, "decay": 0.75}
    assert train(push, delay_compensation=adaptive)[0] == pytest.approx(
        1 - 0.1 * (2 + 0.5 * 4 / sqrt(1 + 1e-7))
    )


def test_clipping_looks_at_corrected_gradients():
    """Of norm 4 and staleness 4 a norm of 1 is left, which is not above 1."""
    push = [[(np.full(SIZE, 2.0), np.zeros(SIZE), 4, 8)]]
    assert train(push, staleness_scaling="inverse", clip_norm=1.0)[0] == pytest.approx(
        0.95, abs=1e-5
    )
    assert train(push, clip_norm=1.0)[0] == pytest.approx(0.95, abs=1e-5)
    assert train(push, staleness_scaling="inverse", clip_norm=0.5)[0] == pytest.approx(
        0.975, abs=1e-5
    )
