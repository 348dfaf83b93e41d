"""Intervals against scipy and closed forms; what must hold of any repeats (Hypothesis)."""

from dataclasses import replace
from math import exp, inf, isfinite, log, nan, sqrt
from statistics import mean

import pytest
from hypothesis import assume, given, strategies as st
from scipy import stats

from raysync.results.statistics import (
    Estimate,
    estimate,
    median_run,
    paired_difference,
    paired_ratio,
)
from tests.builders.reports import made_up

values = st.floats(-1e6, 1e6)
missing = st.sampled_from([None, nan, inf, -inf])
repeats = st.lists(values, min_size=2, max_size=12)
by_seed = st.dictionaries(st.integers(0, 20), values | missing, max_size=12)


def near(value):
    return pytest.approx(value, rel=1e-9, abs=1e-6)


def test_three_seeds_by_hand():
    """Mean 2, standard error 1/sqrt 3, and 4.3027 of those: Student's t at 97.5 % with 2 degrees of
    freedom.
    """
    found = estimate([1.0, 2.0, 3.0])
    half = 4.302652729911275 / sqrt(3)
    assert (found.mean, found.count, found.total, found.complete) == (2.0, 3, 3, True)
    assert (found.low, found.high) == pytest.approx((2 - half, 2 + half))


@given(repeats, st.floats(0.5, 0.999))
def test_the_interval_is_scipy_s(sample, confidence):
    assume(max(sample) - min(sample) > 1e-6)
    ours = estimate(sample, confidence)
    theirs = stats.ttest_1samp(sample, 0.0).confidence_interval(confidence)
    assert (ours.low, ours.high) == (near(theirs.low), near(theirs.high))


@given(repeats, st.floats(0.1, 0.9), st.randoms())
def test_of_any_repeats(sample, confidence, random):
    found = estimate(sample, confidence)
    assert found.low <= found.mean <= found.high
    assert found.mean == near(mean(sample))
    wider = estimate(sample, confidence + 0.09)
    assert wider.low <= found.low <= found.high <= wider.high
    shuffled = estimate(random.sample(sample, len(sample)), confidence)
    for name in ("mean", "low", "high"):
        assert getattr(shuffled, name) == near(getattr(found, name))


@given(repeats, st.lists(missing, max_size=4))
def test_what_is_missing_changes_the_count_and_nothing_else(sample, gaps):
    expected = replace(estimate(sample), total=len(sample) + len(gaps))
    assert estimate([*gaps, *sample]) == expected


@pytest.mark.parametrize(
    ("sample", "found"),
    [
        ([], Estimate(None, None, None, 0, 0)),
        ([None, nan], Estimate(None, None, None, 0, 2)),
        ([3.0], Estimate(3.0, None, None, 1, 1)),
        ([None, 3.0, inf], Estimate(3.0, None, None, 1, 3)),
        ([3.0, 3.0], Estimate(3.0, 3.0, 3.0, 2, 2)),
    ],
)
def test_few_repeats_and_none(sample, found):
    assert estimate(sample) == found


@given(by_seed, values)
def test_the_paired_difference_to_oneself_shifted_is_the_shift(ours, shift):
    theirs = {seed: None if value is None else value - shift for seed, value in ours.items()}
    found = paired_difference(ours, theirs)
    there = sum(value is not None and isfinite(value) for value in ours.values())
    assert (found.count, found.total) == (there, len(ours))
    assert found.mean is None if not there else found.mean == near(shift)
    if there > 1:
        assert found.low == near(shift) == found.high


@given(by_seed, by_seed)
def test_pairs_are_of_common_seeds_and_change_sign(ours, theirs):
    forth, back = paired_difference(ours, theirs), paired_difference(theirs, ours)
    assert forth.total == back.total == len(set(ours) & set(theirs))
    assert forth.count == back.count <= forth.total
    if forth.mean is not None:
        assert forth.mean == near(-back.mean)
    if forth.low is not None:
        assert (forth.low, forth.high) == (near(-back.high), near(-back.low))


def test_what_a_seed_does_to_both_falls_out():
    ours, theirs = {0: 10.0, 1: 20.0, 2: 30.0}, {0: 9.0, 1: 18.9, 2: 29.1}
    alone, paired = estimate(list(ours.values())), paired_difference(ours, theirs)
    assert alone.low <= 19 <= alone.high
    assert paired.low > 0 or paired.high < 0
    same = stats.ttest_rel(list(ours.values()), list(theirs.values())).confidence_interval()
    assert (paired.low, paired.high) == pytest.approx(tuple(same))


times = st.dictionaries(st.integers(0, 9), st.floats(1e-3, 1e6), min_size=2)


@given(times, st.floats(1e-3, 1e3))
def test_the_paired_ratio_to_oneself_scaled_is_the_scale(theirs, scale):
    found = paired_ratio({seed: scale * value for seed, value in theirs.items()}, theirs)
    assert (found.mean, found.low, found.high) == pytest.approx((scale, scale, scale))


@given(times, times)
def test_ratios_are_differences_of_logarithms(ours, theirs):
    ratio = paired_ratio(ours, theirs)
    difference = paired_difference(
        *({seed: log(value) for seed, value in one.items()} for one in (ours, theirs))
    )
    assert (ratio.count, ratio.total) == (difference.count, difference.total)
    back = paired_ratio(theirs, ours)
    if ratio.mean is not None:
        assert ratio.mean == pytest.approx(exp(difference.mean)) == pytest.approx(1 / back.mean)
    if ratio.low is not None and abs(difference.low) < 500 and abs(difference.high) < 500:
        ends = ratio.low, ratio.high
        assert ends == pytest.approx((exp(difference.low), exp(difference.high)))
        assert ends == pytest.approx((1 / back.high, 1 / back.low))


def test_a_ratio_of_what_is_no_time():
    found = paired_ratio(
        {0: 0.0, 1: 2.0, 2: None, 3: -1.0, 5: 1.0}, {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}
    )
    assert found == Estimate(2.0, None, None, 1, 4)
    assert paired_ratio({}, {0: 1.0}) == Estimate(None, None, None, 0, 0)
    assert paired_ratio({0: 1e-300, 1: 1e300}, {0: 1e300, 1: 1e-300}).high < inf


def runs(*summaries):
    return made_up({"bsp": summaries}).runs


def seed_of(run):
    return None if run is None else run.seed


@pytest.mark.parametrize(
    ("accuracies", "middle"),
    [
        ([0.1, 0.9, 0.5], 2),
        ([0.9, 0.5], 1),
        ([0.1, 0.4, 0.3, 0.2], 3),
        ([0.7], 0),
        ([], None),
        ([None, 0.5, 0.9], 1),
        ([None, None, 0.9], 0),
        ([0.5, 0.5, 0.5], 1),
        ([0.9, 0.5, 0.5, 0.1, 0.95], 1),
    ],
)
def test_the_median_run(accuracies, middle):
    """A run without a result is the worst; of two in the middle the worse; of equals, by seed."""
    assert seed_of(median_run(runs(*({"final_accuracy": one} for one in accuracies)))) == middle


def test_the_median_run_by_what_should_be_small_and_of_lost_trials():
    three = runs(*({"final_perplexity": one, "final_accuracy": 0.5} for one in (3.0, 9.0, 5.0)))
    assert seed_of(median_run(three, "final_perplexity", rises=False)) == 2
    two = runs(*({"final_perplexity": one} for one in (3.0, 9.0)))
    assert seed_of(median_run(two, "final_perplexity", rises=False)) == 1
    assert seed_of(median_run(two, "final_perplexity", failed=1, rises=False)) == 1
    assert median_run(two, "final_perplexity", failed=2, rises=False) is None
    diverged = runs(
        {"final_accuracy": 0.99, "status": "diverged"},
        {"final_accuracy": 0.3},
        {"final_accuracy": 0.2},
    )
    assert seed_of(median_run(diverged)) == 2
