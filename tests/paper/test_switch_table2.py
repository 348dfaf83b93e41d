"""The search for the switch point, fed with the published runs: Sync-Switch, section VI-C, Table
II.

Its recurring row of exp2 is left out: the cost that it prints does not fit its own
effective-training ratio.
"""

import random
from math import sqrt
from pathlib import Path
from statistics import fmean as mean

import pytest
import yaml

from raysync.config import Known, SwitchSearch
from raysync.tuning.fraction_search import Training, search

PUBLISHED = {
    setup: {
        fraction: [Training(accuracy, seconds) for seconds, accuracy in runs]
        for fraction, runs in by_fraction.items()
    }
    for setup, by_fraction in yaml.safe_load(
        Path(__file__).with_name("sync_switch_runs.yaml").read_text()
    ).items()
}
TABLE_2 = [
    ("exp1", False, 5, 5, 12.71, 15.79, 1.97, 1.0),
    ("exp1", False, 3, 3, 7.62, 9.47, 1.97, 0.992),
    ("exp1", True, 0, 3, 4.63, 5.75, 2.59, 1.0),
    ("exp2", False, 5, 5, 17.86, 44.81, 1.12, 1.0),
    ("exp2", False, 4, 4, 14.28, 35.83, 1.12, 0.934),
    ("exp3", False, 5, 5, 7.68, 16.54, 1.30, 1.0),
    ("exp3", False, 3, 3, 4.61, 9.93, 1.30, 1.0),
    ("exp3", True, 0, 1, 0.54, 1.16, 1.87, 1.0),
]


def average(runs):
    return Training(mean(run.value for run in runs), mean(run.seconds for run in runs))


def searched(setup, recurring, n_bsp, n_candidate, draw):
    """`draw(rows, count)`: the runs of a fraction of which the set-up has these."""
    rows = PUBLISHED[setup]
    bsp = average(rows[1.0])
    paradigm = SwitchSearch(
        target="final_accuracy",
        first_repeats=n_bsp or 1,
        candidate_repeats=n_candidate,
        candidates_max=8,
    )
    return search(
        paradigm,
        lambda fraction, count: draw(rows[fraction], count) if fraction in rows else [],
        Known(value=bsp.value, seconds=bsp.seconds) if recurring else None,
    )


def on_average(rows, count):
    return [average(rows)] * count


@pytest.mark.parametrize(
    ("setup", "fraction", "speedup"),
    [("exp1", 0.0625, 5.13), ("exp2", 0.125, 1.66), ("exp3", 0.5, 1.87)],
)
def test_the_fractions_of_table_1(setup, fraction, speedup):
    found = searched(setup, False, 5, 5, on_average)
    assert found.fraction == fraction
    assert 1 / found.ratio(found.answer) == pytest.approx(speedup, rel=0.005)


@pytest.mark.parametrize(
    ("setup", "recurring", "n_bsp", "n_candidate", "cost", "amortisation", "effective", "_"),
    TABLE_2,
)
def test_the_costs_of_table_2(
    setup, recurring, n_bsp, n_candidate, cost, amortisation, effective, _
):
    found = searched(setup, recurring, n_bsp, n_candidate, on_average)
    for value, printed in (
        (found.cost, cost),
        (found.amortisation, amortisation),
        (found.effective, effective),
    ):
        assert value == pytest.approx(printed, abs=0.005 * printed + 0.005), (
            "0.5 %, and half of its last digit"
        )


def success(setup, recurring, n_bsp, n_candidate, draws=1000):
    """Return how often so few runs, drawn without replacement, lead to the share of all."""
    chance = random.Random(0)

    def some(rows, count):
        return chance.sample(rows, min(count, len(rows)))

    wanted = searched(setup, False, 5, 5, on_average).fraction
    return mean(
        searched(setup, recurring, n_bsp, n_candidate, some).fraction == wanted
        for _ in range(draws)
    )


@pytest.mark.parametrize(
    ("setup", "recurring", "n_bsp", "n_candidate", "_1", "_2", "_3", "probability"), TABLE_2
)
def test_the_success_probabilities_of_table_2(
    setup, recurring, n_bsp, n_candidate, _1, _2, _3, probability
):
    """Of finding the answer of all runs with as many as are drawn, without replacement; all, where
    fewer are there.

    Within 1 %, beyond what the paper's own 1000 draws leave open (two standard errors). It matters
    for exp2 alone: of its 25 pairs of four BSP runs and four at 6.25 % two lead elsewhere, so the
    exact probability is 92 %.
    """
    found = success(setup, recurring, n_bsp, n_candidate)
    left_open = 2 * sqrt(probability * (1 - probability) / 1000)
    assert found == pytest.approx(probability, abs=0.01 + left_open)


@pytest.mark.parametrize(("setup", "at_most"), [("exp1", 0.5), ("exp2", 0.5), ("exp3", 0.75)])
def test_one_run_of_each_share_is_too_few(setup, at_most):
    one, three = (success(setup, False, runs, runs, draws=300) for runs in (1, 3))
    assert one < at_most < three
