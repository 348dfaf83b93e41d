"""Randomness without a state, and the step times made of it."""

from statistics import fmean, stdev

import pytest

from raysync.config import Jitter, WorkerGroup
from raysync.emulation.step_time import StepTime, jitter_of
from raysync.randomness import (
    hash_prefix,
    hashed_seed,
    standard_normal,
    standard_normal_at,
    uniform,
    uniform_at,
)


def test_every_part_of_the_key_counts():
    keys = [
        (0, "a", "w", 0),
        (1, "a", "w", 0),
        (0, "b", "w", 0),
        (0, "a", "v", 0),
        (0, "a", "w", 1),
    ]
    assert len({hashed_seed(*key) for key in keys}) == len(keys)
    assert hashed_seed(*keys[0]) == hashed_seed(*keys[0])


def test_a_key_that_has_been_begun_draws_the_same():
    begun = hash_prefix(7, "test", "w")
    for clock in (0, 9, 10, 123456):
        assert uniform_at(begun, clock) == uniform(7, "test", "w", clock)
        assert standard_normal_at(begun, clock) == standard_normal(7, "test", "w", clock)


def test_draws_are_uniform_and_normal():
    draws = [uniform(7, "test", "w", clock) for clock in range(4000)]
    assert min(draws) > 0
    assert max(draws) < 1
    assert fmean(draws) == pytest.approx(0.5, abs=0.02)
    normal = [standard_normal(7, "test", "w", clock) for clock in range(4000)]
    assert (fmean(normal), stdev(normal)) == pytest.approx((0, 1), abs=0.05)


@pytest.mark.parametrize("distribution", ["normal", "lognormal"])
def test_jitter_has_mean_one_and_the_given_spread(distribution):
    jitter = Jitter(distribution=distribution, sigma=0.2)
    factors = [jitter_of(jitter, 0, "w")(clock) for clock in range(4000)]
    assert fmean(factors) == pytest.approx(1, abs=0.02)
    assert stdev(factors) == pytest.approx(0.2, rel=0.1)
    assert min(factors) > 0


def test_a_step_lasts_its_base_over_its_speed():
    emulated = StepTime(WorkerGroup(step_s=0.5, speed=2), 0, "w", 1)
    assert emulated.seconds(0, 1, computed_s=9.0) == 0.25
    measured = StepTime(WorkerGroup(speed=0.5), 0, "w", 1).seconds(0, 1, computed_s=3.0)
    assert measured == 6.0, "without step_s the measured time counts"
    assert jitter_of(Jitter(distribution="none", sigma=1.0), 0, "w")(0) == 1.0
