"""The page on the hybrid parameter server: its trials are the paper's rows, its claims the paper's,
its clock a laptop's.
"""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from raysync import config
from raysync.results.statistics import Estimate

FOLDER = Path(__file__).parent
CORES = {"mnist": 4, "cifar10": 4, "fashion-mnist": 2}
"""Of the paper's machines A and B (its Table 2)."""


def test_every_trial_repeats_a_row_of_the_paper_and_every_row_has_all_seeds(tables, results):
    for table in sum(tables.DATASETS.values(), ()):
        there = tables.rows(results, table)
        names = {paradigm: name for name, paradigm in tables.BASELINES.items()}
        assert [row.change for row in there if row.reading != tables.SNAPSHOTS["global"]] == [
            names.get(text, text) for text in results.published(table).rows
        ]
        trials, seeds = results.trials(table), range(20 if table in tables.DATASETS["MNIST"] else 3)
        assert sorted(number for row in there for number in row.trials.trial) == list(trials.trial)
        assert all(list(row.trials.seed) == list(seeds) for row in there)


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
            wanted = tables.NOTHING if claims_difference and not differs else tables.REPRODUCES
            assert found == wanted, one


LARGE, SMALL = {0: 0.1, 1: 0.4}, {0: 0.004, 1: 0.03}
"""Published differences beyond the band of what is alike, and within it, by what no difference
is."""


def none_of(tables, says):
    """No difference: 0 of an accuracy, 1 of a time."""
    measure, sign = tables.SAYS[says.removeprefix("no ")]
    return (0 if measure == "final_accuracy" else 1), sign


@pytest.mark.parametrize(
    ("says", "published", "low", "high", "verdict"),
    [
        ("more accurate", LARGE, 0.016, 0.03, "reproduces"),
        ("more accurate", LARGE, 0.001, 0.06, "undecided"),
        ("more accurate", LARGE, 0.001, 0.04, "does not"),  # not half of what is published
        ("more accurate", LARGE, 0.001, 0.014, "does not"),
        ("more accurate", LARGE, -0.02, -0.001, "does not"),
        ("more accurate", LARGE, 0, 0, "does not"),
        ("less accurate", LARGE, -0.03, -0.016, "reproduces"),
        ("less accurate", LARGE, -0.06, -0.001, "undecided"),
        ("less accurate", LARGE, -0.04, -0.001, "does not"),
        ("less accurate", LARGE, 0.001, 0.02, "does not"),
        ("as accurate", LARGE, -0.01, 0.014, "reproduces"),
        ("as accurate", LARGE, -0.01, 0.02, "undecided"),
        ("as accurate", LARGE, 0.016, 0.02, "does not"),
        ("as accurate", LARGE, -0.02, -0.016, "does not"),
        ("no more accurate", LARGE, -0.02, 0.014, "reproduces"),
        ("no more accurate", LARGE, 0.016, 0.02, "does not"),
        ("no more accurate", LARGE, -0.01, 0.02, "undecided"),
        ("faster", LARGE, 0.8, 0.9, "reproduces"),
        ("faster", LARGE, 1, 1, "does not"),
        ("faster", LARGE, 0.79, 1.1, "undecided"),
        ("faster", LARGE, 0.81, 1.1, "does not"),
        ("faster", LARGE, 0.987, 0.994, "does not"),  # of 0.587 that are published
        ("slower", LARGE, 1.1, 1.2, "reproduces"),
        ("slower", LARGE, 0.9, 0.95, "does not"),
        ("slower", LARGE, 1, 1, "does not"),
        ("as fast", LARGE, 0.96, 1.04, "reproduces"),
        ("as fast", LARGE, 1.06, 1.1, "does not"),
        ("as fast", LARGE, 0.9, 1.0, "undecided"),
        ("no faster", LARGE, 0.96, 1.1, "reproduces"),
        ("no faster", LARGE, 0.8, 0.9, "does not"),
        ("more accurate", SMALL, 0.001, 0.02, "nothing to reproduce"),
        ("more accurate", SMALL, -0.001, 0.001, "nothing to reproduce"),
        ("more accurate", SMALL, 0.016, 0.02, "reproduces"),
        ("more accurate", SMALL, -0.02, -0.016, "does not"),
        ("more accurate", SMALL, 0, 0, "does not"),
        ("less accurate", SMALL, -0.014, -0.001, "nothing to reproduce"),
        ("faster", SMALL, 0.964, 0.966, "nothing to reproduce"),
        ("faster", SMALL, 0.94, 0.945, "reproduces"),
        ("faster", SMALL, 1.06, 1.1, "does not"),
    ],
)
def test_a_claim_holds_if_all_of_the_interval_says_so(tables, says, published, low, high, verdict):
    """What is published within the band of what is alike is too small to be shown."""
    none, sign = none_of(tables, says)
    found = Estimate((low + high) / 2, low, high, 3, 3)
    assert tables.word(found, says, none, none + sign * published[none]) == verdict


@given(
    st.floats(-1, 1),
    st.floats(0, 1),
    st.sampled_from(["more accurate", "less accurate", "faster", "slower"]),
    st.sampled_from([LARGE, SMALL]),
)
def test_no_difference_holds_that_the_page_calls_alike(tables, middle, half, says, sizes):
    none, sign = none_of(tables, says)
    one = Estimate(none + middle, none + middle - half, none + middle + half, 3, 3)
    if tables.word(one, says, none, none + sign * sizes[none]) == tables.REPRODUCES:
        alike = says.replace("more", "as").replace("less", "as") if none == 0 else "as fast"
        assert tables.word(one, alike, none, none) == tables.DOES_NOT


def test_a_published_difference_below_its_own_noise_is_nothing_to_reproduce(tables):
    """Ten runs that look at 1,152 of 10,000 images each; all of them leave no noise."""
    least = tables.noise(0.9538, 0.9494)
    assert least == pytest.approx(1.96 * (0.0921 / 11_520 * 0.8848) ** 0.5, rel=2e-3)
    ours = Estimate(0.03, 0.02, 0.04, 3, 3)
    for published, verdict in ((0.0044, tables.NOTHING), (0.006, tables.REPRODUCES)):
        assert tables.word(ours, "more accurate", 0.0, published, least) == verdict


def test_what_the_clock_assumes_or_cannot_express_is_called_so(tables, results):
    verdicts = {
        (table, one.row.change, one.says, one.than): one.verdict
        for table in ("table-7", "table-8", "table-9", "table-10", "table-12")
        for one in tables.judged(results, table)
    }
    costs_nothing = ("batch_size", "num_workers=", "lr=", "staleness_tolerance")
    for (_, change, says, _), verdict in verdicts.items():
        if verdict == tables.ASSUMED:
            assert any(each in change for each in costs_nothing) or says == "slower"
    for claim in (
        ("table-7", "batch_size=64", "faster", "asynchronous"),
        ("table-9", "lr=0.05", "as fast", "synchronous"),
        ("table-12", "lr=0.01", "faster", "synchronous"),
        ("table-8", "num_workers_ps_update=2", "slower", "asynchronous"),
        ("table-12", "staleness_tolerance=100", "no more accurate", "asynchronous"),
    ):
        assert verdicts[claim] == tables.ASSUMED
    assert verdicts["table-10", "lr=0.05", "faster", "asynchronous"] == tables.CANNOT


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
        iterations = 300 if file.stem == "table-6-300" else 500
        assert experiment.workload.iterations_per_worker == iterations
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
