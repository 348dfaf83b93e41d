"""Steps before a run, which leave nothing behind."""

import random

import numpy as np
import torch

from raysync.cluster.actors.warm_up import STEPS, warm_up
from tests.fakes.clock import FakeClock


def test_a_process_warms_up_once_for_what_takes_the_same_code():
    steps, (one, other) = [], (object(), object())
    for key in (one, one, other):
        warm_up(key, lambda key=key: lambda number: steps.append((key, number)))
    assert steps == [(key, number) for key in (one, other) for number in range(STEPS)]


def test_a_long_step_is_not_repeated(monkeypatch):
    clock, steps = FakeClock(monkeypatch), []

    def step(number):
        steps.append(number)
        clock.sleep(10)

    warm_up(object(), lambda: step)
    assert steps == [0]


def test_generators_are_as_before_and_a_failure_is_left_to_the_run():
    def drawing(number):
        torch.rand(3), np.random.rand(3), random.random()
        raise ValueError("no such layer")

    key = object()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    warm_up(key, lambda: drawing)
    drawn = random.random(), np.random.rand(), torch.rand(()).item()
    random.seed(0), np.random.seed(0), torch.manual_seed(0)
    assert drawn == (random.random(), np.random.rand(), torch.rand(()).item())
    steps = []
    warm_up(key, lambda: steps.append)
    assert steps, "it is not warm yet"
