"""Steps before a run, which leave nothing behind."""

import random

import numpy as np
import pytest
import torch

from raysync.cluster.actors import warm_up as subject
from raysync.cluster.actors.warm_up import STEPS, warm_up


@pytest.fixture(autouse=True)
def cold(monkeypatch):
    monkeypatch.setattr(subject, "_WARM", set())


def test_a_process_warms_up_once_for_what_takes_the_same_code():
    steps = []
    for key in ("a", "a", "b"):
        warm_up(key, lambda key=key: lambda number: steps.append((key, number)))
    assert steps == [(key, number) for key in "ab" for number in range(STEPS)]


def test_a_long_step_is_not_repeated(monkeypatch):
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(subject, "now_s", lambda: next(now))
    steps = []
    warm_up("a", lambda: steps.append)
    assert steps == [0]


def test_generators_are_as_before_and_a_failure_is_left_to_the_run():
    def drawing(number):
        torch.rand(3), np.random.rand(3), random.random()
        raise ValueError("no such layer")

    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    warm_up("a", lambda: drawing)
    drawn = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    assert drawn == (random.random(), np.random.rand(), torch.rand(()).item())
    steps = []
    warm_up("a", lambda: steps.append)
    assert steps, "it is not warm yet"
