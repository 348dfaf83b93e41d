"""The rule of the search for the switch point, and its costs, over random worlds."""

from dataclasses import replace
from math import isclose
from statistics import fmean

import pytest
from hypothesis import given, strategies as st

from raysync.config import Known, SwitchSearch
from raysync.errors import RunFailed
from raysync.tuning.fraction_search import Training, search

SECONDS = st.floats(0.1, 100)
RUNS = st.builds(Training, st.none() | st.floats(0, 1), SECONDS)
RULES = st.builds(
    SwitchSearch,
    target=st.just("final_accuracy"),
    threshold=st.floats(0, 0.5),
    first_repeats=st.integers(1, 3),
    candidate_repeats=st.integers(1, 3),
    candidates_max=st.integers(1, 6),
)
WORLDS = st.lists(st.lists(RUNS, min_size=3, max_size=3), min_size=7, max_size=7)
"""The runs of 1, 1/2, 1/4, ..."""


class World:
    """Hands the runs out, and keeps what was asked for."""

    def __init__(self, runs):
        self._runs = {0.5**index: some for index, some in enumerate(runs)}
        self.asked = []

    def __call__(self, fraction, repeats):
        self.asked.append((fraction, repeats))
        return self._runs[fraction][:repeats]


def accuracies(runs):
    return [run.value for run in runs if run.value is not None]


KNOWN = st.builds(Known, value=st.floats(0, 1), seconds=st.none() | SECONDS)


@given(RULES, WORLDS, st.none() | KNOWN)
def test_the_search(paradigm, runs, known):
    world = World(runs)
    first = runs[0][: paradigm.first_repeats]
    if known is None and not accuracies(first):
        with pytest.raises(RunFailed, match=f"of {paradigm.first_repeats} runs of `first` alone"):
            search(paradigm, world)
        assert world.asked == [(1.0, paradigm.first_repeats)]
        return
    found = search(paradigm, world, known)
    accuracy = known.value if known else fmean(accuracies(first))

    # it asks for one fraction after the other, each half the last, and stops at the first that
    # fails
    of_first = [] if known else [(1.0, paradigm.first_repeats)]
    halves = [0.5**number for number in range(1, len(found.candidates) + 1)]
    assert world.asked == of_first + [(half, paradigm.candidate_repeats) for half in halves]
    *passed, last = found.candidates
    assert all(one.passes for one in passed)
    assert not last.passes or len(found.candidates) == paradigm.candidates_max
    for one in found.candidates:
        reached = accuracies(one.trainings)
        is_good = len(reached) == len(one.trainings)
        is_good = is_good and fmean(reached) >= accuracy - paradigm.threshold - 1e-12
        assert one.passes == is_good

    # the answer passed, and what comes after it did not; or it is `first` alone
    fractions = [1.0, *(one.fraction for one in found.candidates if one.passes)]
    assert found.fraction == min(fractions)

    # the formulas of the reference, where all runs came to an end
    ended = [run.seconds for run in first if run.value is not None]
    unit = known.seconds if known else fmean(ended)
    assert found.first_seconds == unit
    if unit is None:
        assert (found.cost, found.amortisation, found.effective) == (None, None, None)
        return
    tried = [run for one in found.candidates for run in one.trainings]
    spent = sum(run.seconds for run in tried) + (0 if known else sum(run.seconds for run in first))
    assert isclose(found.cost, spent / unit)
    useful = paradigm.candidate_repeats * (len(fractions) - 1)
    useful += 0 if known else len(accuracies(first))
    assert isclose(found.effective * found.cost, useful, abs_tol=1e-9)
    ratio = 1.0
    if found.fraction < 1:
        ratio = fmean([run.seconds for run in found.answer.trainings]) / unit
    if ratio < 1:
        assert isclose(found.amortisation * (1 - ratio), found.cost)
    else:
        assert found.amortisation is None


@given(RULES, WORLDS)
def test_where_less_is_better_all_is_the_mirror_image(rules, runs):
    def mirrored(run):
        return replace(run, value=None if run.value is None else -run.value)

    if accuracies(runs[0][: rules.first_repeats]):
        falling = [[mirrored(run) for run in some] for some in runs]
        found = search(rules, World(runs))
        other = search(rules, World(falling), rises=False)
        assert other.value == -found.value
        assert (other.fraction, other.cost) == (found.fraction, found.cost)


def test_the_formulas_of_the_reference():
    """cost = n_first + n_candidate * sum of mean T(f) / mean T(first), and so on."""
    paradigm = SwitchSearch(target="final_accuracy", first_repeats=2, candidate_repeats=3)
    runs = {
        1.0: [(0.9, 90), (0.92, 110)],
        0.5: [(0.9, 50), (0.9, 60), (0.91, 70)],
        0.25: [(0.85, 30)] * 3,
    }
    found = search(paradigm, lambda fraction, repeats: [Training(*run) for run in runs[fraction]])
    assert found.fraction == 0.5
    assert found.cost == pytest.approx(2 + 3 * (0.6 + 0.3))
    assert found.amortisation == pytest.approx(found.cost / (1 - 0.6))
    assert found.effective == pytest.approx((2 + 3) / found.cost)


def test_exactly_the_threshold_below_passes():
    paradigm = SwitchSearch(target="final_accuracy", candidates_max=1)
    accuracy = {1.0: 0.13, 0.5: 0.12}
    assert accuracy[1.0] - 0.01 > accuracy[0.5], "in binary"
    found = search(paradigm, lambda at, repeats: [Training(accuracy[at], 1.0)] * repeats)
    assert found.fraction == 0.5


def test_what_diverged_fails_and_costs_what_it_took():
    paradigm = SwitchSearch(
        target="final_accuracy", threshold=0.5, first_repeats=1, candidate_repeats=2
    )

    def found_with(half):
        return search(paradigm, lambda at, _: [Training(0.9, 10.0)] if at == 1 else half)

    found = found_with([Training(0.9, 5.0), Training(None, 1.0, "diverged")])
    assert (found.fraction, found.cost, found.amortisation) == (1.0, pytest.approx(1.6), None)
    assert found_with([]).cost == 1
    free = search(paradigm, lambda *_: [], Known(value=0.9, seconds=10.0))
    assert (free.cost, free.effective, free.fraction) == (0, None, 1.0)
