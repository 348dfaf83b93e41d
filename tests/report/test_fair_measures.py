"""What makes models comparable: a mean of the last evaluations, equal time, and a margin."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import raysync
from raysync.errors import ConfigError
from raysync.results.collection import collection_of
from raysync.results.ranking import rank
from raysync.results.sentences import answer
from raysync.results.statistics import estimate
from raysync.results.tables import rows_of
from tests.builders.messages import naming

LAST, MARKS = 3, 12
SPEEDS = [{"name": "fast", "step_s": 0.1}, {"name": "slow", "step_s": 0.3}]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, torch_of_one_thread):
    """BSP, and ASP that is done sooner, with two seeds."""
    settings = {
        "engine": "virtual",
        "model": "mlp",
        "data": "digits",
        "batch_size": 16,
        "workload": {"samples": 960},
        "workers": SPEEDS,
        "evaluation": {"marks": MARKS, "last": LAST},
        "keep": "none",
        "output": str(tmp_path_factory.mktemp("runs")),
    }
    return [
        raysync.run(settings | {"paradigm": paradigm, "seed": seed})
        for paradigm in ("bsp", "asp")
        for seed in (0, 1)
    ]


def test_the_final_metrics_are_means_of_the_last_evaluations(runs):
    for record in runs:
        last = record.evaluations.tail(LAST)
        assert last.accuracy.nunique() > 1, "a mean of equals shows nothing"
        for name in ("accuracy", "loss"):
            assert record.summary[f"final_{name}"] == pytest.approx(last[name].mean())
        again = raysync.load(record.path)
        assert again.summary["final_accuracy"] == record.summary["final_accuracy"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"evaluation": {"marks": 4, "last": 5}}, "evaluation last 5 4 marks"),
        ({"evaluation": {"margin": 0}}, "evaluation.margin 0"),
    ],
)
def test_evaluations_that_cannot_be_averaged_are_refused(tmp_path, settings, says):
    with pytest.raises(ConfigError, match=naming(says)):
        raysync.run({"engine": "virtual", "output": str(tmp_path), **settings})


def test_at_equal_time_a_model_is_as_good_as_its_last_evaluations_until_then(runs):
    bsp, asp = runs[:2], runs[2:]
    rows = rows_of(collection_of(runs, []))
    expected = []
    for slow, quick in zip(bsp, asp, strict=True):
        assert quick.summary["seconds"] < 0.8 * slow.summary["seconds"]
        seconds = slow.evaluations["at"] - slow.pushes.released_at_s.min()
        until = slow.evaluations[seconds <= quick.summary["seconds"]]
        assert LAST < len(until) < len(slow.evaluations) - 1
        expected.append(until.accuracy.tail(LAST).mean())
    assert rows["bsp"]["at_equal_time"].mean == pytest.approx(np.mean(expected))
    assert rows["asp"]["at_equal_time"] == rows["asp"]["final_accuracy"]
    alone = rows_of(collection_of(bsp, []))
    assert alone["bsp"]["at_equal_time"].mean is None
    stopped = rows_of(collection_of([*bsp, asp[0]], []))  # before the second seed of the other
    assert stopped["bsp"]["at_equal_time"].count == 1


def test_models_within_a_margin_by_two_one_sided_tests_are_equally_good(runs):
    finals = {
        paradigm: [record.summary["final_accuracy"] for record in records]
        for paradigm, records in (("bsp", runs[:2]), ("asp", runs[2:]))
    }
    gaps = np.subtract(finals["bsp"], finals["asp"])
    low, high = stats.t.interval(0.9, 1, gaps.mean(), stats.sem(gaps))
    distance = max(abs(low), abs(high))
    for margin, alike in ((distance * 1.01, True), (distance * 0.99, False)):
        ranking = rank(replace(collection_of(runs, []), margin=margin))
        [other] = ranking.final.behind
        assert ranking.final.equally_good == ((other.other.paradigm,) if alike else ())
        assert f"{100 * margin:.3g} points" in answer(ranking)
    assert rank(collection_of(runs, [])).final.equally_good == ()


def test_two_one_sided_tests_are_an_interval_of_90_percent():
    """Schuirmann 1987: the larger p of both tests is below 5 % exactly where it lies within."""
    gaps, margin = [0.2, -0.1, 0.4, 0.3], 0.5
    found = estimate(gaps, 0.9)
    p_low = stats.ttest_1samp(gaps, -margin, alternative="greater").pvalue
    p_high = stats.ttest_1samp(gaps, margin, alternative="less").pvalue
    assert (max(p_low, p_high) < 0.05) == (max(abs(found.low), abs(found.high)) < margin)


def test_a_margin_makes_no_other_scenario(tmp_path):
    records = [
        raysync.run(
            {
                "engine": "virtual",
                "timing": "only",
                "workload": {"iterations_per_worker": 2},
                "workers": SPEEDS,
                "evaluation": evaluation,
                "seed": seed,
                "output": str(tmp_path),
            }
        )
        for seed, evaluation in enumerate(({}, {"margin": 0.01}))
    ]
    assert list(collection_of(records, []).scenarios) == [""]
