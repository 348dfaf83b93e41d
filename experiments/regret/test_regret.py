"""Regret is measured against the best there is, and stays below its bounds."""

from math import log, sqrt
from pathlib import Path

import comparator
import numpy as np
import pandas as pd
import pytest
import regret
import torch
from threadpoolctl import threadpool_limits
from torch.nn.functional import cross_entropy

import raysync
from raysync import config
from raysync.training.models.convex import LIPSCHITZ_OF_UNIT_NORM

FOLDER = Path(__file__).parent


@pytest.fixture(autouse=True)
def _one_thread():
    with threadpool_limits(1):  # tiny matrices
        yield


def objective(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(30, 4))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    counts = rng.random(30)
    return comparator.Objective(x, rng.integers(0, 3, 30), 3, counts / counts.sum())


def test_the_objective_is_what_a_model_is_trained_on():
    its, w = objective(0), np.random.default_rng(1).normal(size=12)
    tensor = torch.tensor(w, requires_grad=True)
    losses = cross_entropy(
        torch.from_numpy(its.x) @ tensor.reshape(3, 4).T, torch.from_numpy(its.y), reduction="none"
    )
    value = losses @ torch.from_numpy(its.weights)
    value.backward()
    assert its(w)[0] == pytest.approx(value.item())
    assert its(w)[1] == pytest.approx(tensor.grad.numpy())


@pytest.mark.parametrize("radius", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_comparator_is_the_minimum_over_the_ball(radius, seed):
    """Its gap is next to nothing; no point of the ball is better, of many; another method finds
    nothing better.
    """
    its = objective(seed)
    best = comparator.best_in_ball(its, radius)
    assert np.linalg.norm(best.w) <= radius * (1 + 1e-9)
    assert its(best.w)[0] == best.value
    assert -1e-12 < best.gap < 1e-5
    assert (best.penalty > 0) == (np.linalg.norm(best.w) > radius * 0.9999)
    w = np.zeros(12)
    for _ in range(3000):  # projected gradient descent; f is 1/2-smooth for samples of norm 1
        w = w - 2 * its(w)[1]
        w *= min(1.0, radius / np.linalg.norm(w))
    assert best.value - 1e-7 <= its(w)[0] < best.value + 1e-4
    rng = np.random.default_rng(seed)
    for scale in (1e-3, 0.1, 1.0):
        other = best.w + scale * radius * rng.normal(size=12)
        other *= min(1.0, radius / np.linalg.norm(other))
        assert its(other)[0] >= best.value - best.gap


def test_delays_are_charged_with_the_steps_that_were_missed():
    """Three updates with steps 1, 1 / sqrt(2), 1 / sqrt(3), F = 2; the second lacked the first, the
    third the second.
    """
    delays = regret.delay_bound(pd.DataFrame({"version": [1, 2, 3], "base": [0, 0, 1]}), 1.0, 2.0)
    a, b, c = 1, 1 / sqrt(2), 1 / sqrt(3)
    assert delays == pytest.approx([4 + a, 4 / b + a + b + 2 * a, 4 / c + a + b + c + 2 * (a + b)])


@pytest.mark.parametrize(("label", "s"), [("ssp(staleness=3)", 3), ("asp", 15)])
def test_regret_of_a_short_run(monkeypatch, tmp_path, label, s):
    """The recorded losses are those of the stale weights, computed again; regret is positive and
    below the bounds.
    """
    base = config.load(FOLDER / "regret.yaml", ["workload.samples=1600", f"output={tmp_path}"])
    monkeypatch.setattr(regret, "MARKS", [25, 100])
    [choice] = [choice for choice in base.paradigms if choice.label == label]
    kappa = 2 * (s + 1) * 4
    described = regret.described(choice, 0, 10.0, str(tmp_path))
    assert described.update.lr == pytest.approx(10 / sqrt(kappa))
    assert s != 3 or described.update.lr == pytest.approx(base.update.lr, rel=1e-6)
    record = raysync.run(described.model_copy(update={"workload": base.workload}))
    pushes = record.pushes.query("outcome == 'applied'").sort_values("version")
    rows, facts = regret.analysed(regret.prepare(record.config), pushes)
    assert facts["loss_error_max"] < 1e-5
    assert facts["gradient_max"] <= LIPSCHITZ_OF_UNIT_NORM
    assert facts["norm_max"] <= 10 * (1 + 1e-9)
    for row in rows:
        for_any_rule = 20 * sqrt(row["T"]) * (sqrt(kappa) + 7 / sqrt(kappa))
        assert row["bound"] == pytest.approx(80 * sqrt(kappa * row["T"]))
        assert 0 < row["regret"] < row["delay_bound"] <= for_any_rule < row["bound"]
        assert row["never_learning"] > 0
        assert row["regret"] - row["never_learning"] == pytest.approx(
            pushes.loss[: row["T"]].sum() - row["T"] * log(10)
        )
