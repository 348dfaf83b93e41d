"""Logistic regression is as convex and as steep as stated, projection is what it says, and w* is
the best there is.
"""

from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn.functional import cross_entropy

from raysync import config
from raysync.config import Update
from raysync.errors import ConfigError
from raysync.training.models.convex import LIPSCHITZ_OF_UNIT_NORM
from raysync.training.server.parameter_store import ParameterStore
from raysync.training.vectors.flat import FlatModel
from tests.builders.messages import naming
from tests.builders.models import built
from tests.builders.updates import update_plan

pytestmark = pytest.mark.usefixtures("one_thread")

FEATURES, CLASSES, SAMPLES = 3, 4, 6
SIZE = CLASSES * (FEATURES + 1)
batches = arrays(np.float32, (SAMPLES, FEATURES), elements=st.floats(-100, 100, width=32))
labels = arrays(np.int64, SAMPLES, elements=st.integers(0, CLASSES - 1))
weights = arrays(np.float32, SIZE, elements=st.floats(-50, 50, width=32))


def flat(unit_norm=True):
    return FlatModel(built("logistic-regression", (FEATURES,), CLASSES, unit_norm=unit_norm))


def loss_and_gradient(model, w, x, y):
    model.read_weights(torch.from_numpy(w))
    model.begin_gradient()
    loss = cross_entropy(model.module(torch.from_numpy(x)), torch.from_numpy(y))
    loss.backward()
    model.write_gradient()
    return loss.item(), model.gradient.numpy().astype(float)


@given(batches, labels, weights)
@settings(max_examples=40)
def test_gradients_are_at_most_as_long_as_stated(x, y, w):
    """|grad| <= sqrt(2) with samples of norm 1; without, sqrt(2) times the largest |(x, 1)|."""
    _, gradient = loss_and_gradient(flat(), w, x, y)
    assert np.linalg.norm(gradient) <= LIPSCHITZ_OF_UNIT_NORM * (1 + 1e-5)
    longest = np.sqrt((x.astype(float) ** 2).sum(axis=1) + 1).max()
    _, gradient = loss_and_gradient(flat(unit_norm=False), w, x, y)
    assert np.linalg.norm(gradient) <= sqrt(2) * longest * (1 + 1e-5)


def test_the_constant_is_reached():
    """One sample, sure of the wrong class: no smaller L would do."""
    w = np.zeros((CLASSES, FEATURES + 1), np.float32)
    w[1] = 50
    x, y = np.ones((1, FEATURES), np.float32), np.zeros(1, np.int64)
    assert np.linalg.norm(loss_and_gradient(flat(), w.ravel(), x, y)[1]) == pytest.approx(
        LIPSCHITZ_OF_UNIT_NORM, rel=1e-5
    )


@given(batches, labels, weights, weights, st.floats(0, 1))
@settings(max_examples=40)
def test_the_loss_is_convex(x, y, w, v, share):
    """Below its chords and above its tangents."""
    model = flat()
    at_w, slope = loss_and_gradient(model, w, x, y)
    at_v, _ = loss_and_gradient(model, v, x, y)
    between, _ = loss_and_gradient(model, ((1 - share) * w + share * v).astype(np.float32), x, y)
    rounding = 1e-3
    assert between <= (1 - share) * at_w + share * at_v + rounding
    assert at_v >= at_w + slope @ (v.astype(float) - w) - rounding
    assert (
        abs(at_v - at_w) <= LIPSCHITZ_OF_UNIT_NORM * np.linalg.norm(v.astype(float) - w) + rounding
    )


def test_it_begins_at_0_with_the_bias_as_last_column():
    model = flat(unit_norm=False)
    assert not model.weights.any()
    assert model.size == SIZE
    bias = torch.zeros(CLASSES, FEATURES + 1)
    bias[:, -1] = torch.arange(CLASSES)
    model.read_weights(bias.ravel())
    assert model.module(torch.zeros(1, FEATURES)).tolist() == [[0, 1, 2, 3]]


vectors = arrays(np.float32, 5, elements=st.floats(-1e3, 1e3, width=32))


@given(vectors, vectors, st.floats(1e-2, 1e4))
@settings(max_examples=40)
def test_projection_is_the_nearest_point_of_the_ball(initial, gradient, radius):
    """x R / max(R, |x|) after a step; a second projection changes nothing, and buffers are left
    alone.
    """
    start = torch.from_numpy(np.append(initial, 7.0).astype(np.float32))
    store = ParameterStore(start, 5, Update(lr=1.0, project_radius=radius))
    begun = initial * (radius / max(radius, np.linalg.norm(initial.astype(float))))
    assert store.publish()[:5].numpy() == pytest.approx(begun, rel=1e-5, abs=1e-5)
    store.apply(update_plan([1]), [torch.from_numpy(np.append(gradient, 7.0).astype(np.float32))])
    free = begun - gradient
    moved = store.publish().clone()
    assert moved[:5].numpy() == pytest.approx(
        free * (radius / max(radius, np.linalg.norm(free))), rel=1e-4, abs=1e-3
    )
    store.apply(update_plan([1]), [torch.tensor([0.0] * 5 + [7.0])])
    assert store.publish().numpy() == pytest.approx(moved.numpy(), rel=1e-6)
    assert moved[5] == 7


def test_projected_sgd_with_inverse_sqrt_steps_on_a_line():
    """lr 1, gradient -1, radius 2: 0, 1, 1.707, then 2 (2.284 projected), 2; back by 1 /
    sqrt(5).
    """
    store = ParameterStore(
        torch.zeros(1),
        1,
        Update(lr=1.0, lr_scaling="none", schedule="inverse-sqrt", project_radius=2.0),
    )
    seen = []
    for gradient in (-1.0, -1.0, -1.0, -1.0, 1.0):
        store.apply(update_plan([1]), [torch.tensor([gradient])])
        seen.append(store.publish().item())
    assert seen == pytest.approx([1, 1 + 1 / sqrt(2), 2, 2, 2 - 1 / sqrt(5)])


def test_several_servers_cannot_project():
    settings = {"update": {"project_radius": 1}, "cluster": {"server_shards": 2}}
    with pytest.raises(ConfigError, match=naming("project_radius: cluster.server_shards: 1 2")):
        config.validate(settings)
    with pytest.raises(ConfigError, match="project_radius"):
        config.validate({"update": {"project_radius": 0}})
