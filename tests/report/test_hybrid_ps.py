"""The page on the hybrid parameter server: its trials are the paper's rows, its claims the paper's,
its clock a laptop's.
"""

import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from raysync import config
from raysync.results.statistics import Estimate

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(EXPERIMENTS))

import labbook  # noqa: E402
import labtables  # noqa: E402

FOLDER = EXPERIMENTS / "hybrid-ps"
CORES = {"mnist": 4, "cifar10": 4, "fashion-mnist": 2}
"""Of the paper's machines A and B (its Table 2)."""


@pytest.fixture(scope="module")
def tables():
    return labbook.tables_of(FOLDER)


@pytest.fixture(scope="module")
def results():
    return labtables.Results(FOLDER)


def test_every_trial_repeats_a_row_of_the_paper_and_every_row_is_repeated_three_times(
    tables, results
):
    for table in sum(tables.DATASETS.values(), ()):
        there = tables.rows(results, table)
        names = {paradigm: name for name, paradigm in tables.BASELINES.items()}
        assert [row.change for row in there if row.reading != tables.SNAPSHOTS["global"]] == [
            names.get(text, text) for text in results.published(table).rows
        ]
        trials = [number for row in there for number in row.trials.trial]
        assert sorted(trials) == list(results.trials(table).trial)
        assert all(list(row.trials.seed) == [0, 1, 2] for row in there)


def test_an_interval_between_pulls_is_tried_in_both_readings(tables, results):
    for table in sum(tables.DATASETS.values(), ()):
        by_change = {}
        for row in tables.rows(results, table):
            by_change.setdefault(row.change, []).append(row.reading)
        for change, readings in by_change.items():
            assert readings == (
                list(tables.SNAPSHOTS.values()) if "pull_weights" in change else [""]
            )


def test_the_claims_follow_from_the_published_figures(tables, results):
    """A slip of the pen in either would show."""
    claims = tomllib.loads((FOLDER / "claims.toml").read_text())
    assert set(claims) == set(sum(tables.DATASETS.values(), ()))
    for table in claims:
        assert {one.row.change for one in tables.judged(results, table)} == {
            claim["change"] for claim in claims[table]
        }
        for one in tables.judged(results, table):
            figure = Estimate(one.published, one.published, one.published, 1, 1)
            none = 0.0 if one.measure == "final_accuracy" else 1.0
            found = tables.word(figure, one.says, none, one.published)
            differs = abs(one.published - none) > tables.ALIKE[one.measure]
            claims_difference = one.says not in (
                "as accurate",
                "as fast",
            ) and not one.says.startswith("no ")
            assert found == ("too small" if claims_difference and not differs else "holds"), one


LARGE, SMALL = {0: 0.1, 1: 0.4}, {0: 0.004, 1: 0.03}
"""Published differences beyond the band of what is alike, and within it, by what no difference
is."""


@pytest.mark.parametrize(
    ("says", "none", "low", "high", "verdict"),
    [
        ("more accurate", 0, 0.016, 0.03, "holds"),
        ("more accurate", 0, 0.001, 0.02, "open"),
        ("more accurate", 0, 0.001, 0.014, "does not"),
        ("more accurate", 0, -0.02, -0.001, "does not"),
        ("more accurate", 0, 0, 0, "does not"),
        ("less accurate", 0, -0.03, -0.016, "holds"),
        ("less accurate", 0, 0.001, 0.02, "does not"),
        ("as accurate", 0, -0.01, 0.014, "holds"),
        ("as accurate", 0, -0.01, 0.02, "open"),
        ("as accurate", 0, 0.016, 0.02, "does not"),
        ("as accurate", 0, -0.02, -0.016, "does not"),
        ("no more accurate", 0, -0.02, 0.014, "holds"),
        ("no more accurate", 0, 0.016, 0.02, "does not"),
        ("no more accurate", 0, -0.01, 0.02, "open"),
        ("faster", 1, 0.8, 0.9, "holds"),
        ("faster", 1, 1, 1, "does not"),
        ("faster", 1, 0.9, 1.1, "open"),
        ("faster", 1, 0.987, 0.994, "does not"),  # of 0.587 that are published
        ("slower", 1, 1.1, 1.2, "holds"),
        ("slower", 1, 0.9, 0.95, "does not"),
        ("slower", 1, 1, 1, "does not"),
        ("as fast", 1, 0.96, 1.04, "holds"),
        ("as fast", 1, 1.06, 1.1, "does not"),
        ("as fast", 1, 0.9, 1.0, "open"),
        ("no faster", 1, 0.96, 1.1, "holds"),
        ("no faster", 1, 0.8, 0.9, "does not"),
    ],
)
def test_a_claim_holds_if_all_of_the_interval_says_so(tables, says, none, low, high, verdict):
    one = Estimate((low + high) / 2, low, high, 3, 3)
    _, sign = tables.SAYS[says.removeprefix("no ")]
    assert tables.word(one, says, none, none + sign * LARGE[none]) == verdict


@pytest.mark.parametrize(
    ("says", "none", "low", "high", "verdict"),
    [
        ("more accurate", 0, 0.001, 0.02, "too small"),
        ("more accurate", 0, -0.001, 0.001, "too small"),
        ("more accurate", 0, 0.016, 0.02, "holds"),
        ("more accurate", 0, -0.02, -0.016, "does not"),
        ("more accurate", 0, 0, 0, "does not"),
        ("less accurate", 0, -0.014, -0.001, "too small"),
        ("faster", 1, 0.964, 0.966, "too small"),
        ("faster", 1, 0.94, 0.945, "holds"),
        ("faster", 1, 1.06, 1.1, "does not"),
    ],
)
def test_a_published_difference_within_the_band_is_too_small_to_be_shown(
    tables, says, none, low, high, verdict
):
    one = Estimate((low + high) / 2, low, high, 3, 3)
    _, sign = tables.SAYS[says]
    assert tables.word(one, says, none, none + sign * SMALL[none]) == verdict


@given(
    st.floats(-1, 1),
    st.floats(0, 1),
    st.sampled_from(["more accurate", "less accurate", "faster", "slower"]),
    st.sampled_from([LARGE, SMALL]),
)
def test_no_difference_holds_that_the_page_calls_alike(tables, middle, half, says, sizes):
    measure, sign = tables.SAYS[says]
    none = 0 if measure == "final_accuracy" else 1
    one = Estimate(none + middle, none + middle - half, none + middle + half, 3, 3)
    if tables.word(one, says, none, none + sign * sizes[none]) == "holds":
        alike = says.replace("more", "as").replace("less", "as") if none == 0 else "as fast"
        assert tables.word(one, alike, none, none) == "does not"


def test_all_files_have_one_laptops_clock():
    """Cores shared evenly by the workers; everything else of the clock is the same wherever the
    model is.
    """
    rates, networks = {}, set()
    for file in FOLDER.glob("*.yaml"):
        experiment = config.load(file)
        cores = CORES[experiment.data.name]
        variants = [
            experiment.workers,
            *(
                config.validate({"engine": "virtual", "workers": list(one)}).workers
                for one in experiment.sweep.grid.get("workers", ())
            ),
        ]
        for (group,) in variants:
            assert group.speed == pytest.approx(min(1, cores / group.count), rel=1e-3)
            assert group.jitter.sigma == 0.05
            rates.setdefault(experiment.data.name, set()).add((group.flops_per_s, group.precision))
        networks.add(experiment.network.model_dump_json())
        assert experiment.workload.iterations_per_worker == 500
        assert (experiment.update.lr, experiment.update.combine, experiment.update.lr_scaling) == (
            0.03,
            "sum",
            "none",
        )
    assert len(networks) == 1
    assert all(len(one) == 1 for one in rates.values())


def test_the_best_rows_are_rows(tables, results):
    for table, (_, change) in tables.CHOSEN.items():
        assert change in results.published(table).rows
