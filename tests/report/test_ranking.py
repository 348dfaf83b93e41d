"""What is said, and that it is no more than the numbers allow; and the tables beside it."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from raysync.config import Target
from raysync.core.metrics import ACCURACY, PERPLEXITY, PrimaryMetric
from raysync.results import sentences
from raysync.results.collection import Collection, Run, Success, by_seed
from raysync.results.columns import measures_for, seconds_form, with_interval
from raysync.results.ranking import rank, rank_all
from raysync.results.statistics import estimate, paired_ratio
from raysync.results.tables import cell, columns, table
from tests.builders.reports import LABELS, TARGET, StandIn

RMSE = PrimaryMetric("rmse", "min")


def times(*seconds, accuracy=0.95, **more):
    """A summary a seed."""
    return [
        (
            None
            if one == "lost"
            else {"time_to_target_s": one, "final_accuracy": accuracy, "seconds": 100.0} | more
        )
        for one in seconds
    ]


def answer(collection, scenario=""):
    return sentences.answer(rank(collection, scenario))


def overall(collection):
    return sentences.overall(rank_all(collection))


def led_by(collection):
    leader = rank(collection).leader
    return leader.name, leader.sure


def test_a_clear_winner(made):
    """The pairs' ratios are 2.0, 2.1, 1.9: their geometric mean, and its t interval on the log
    scale.
    """
    text = answer(made({"bsp": times(20, 42, 57), "asp": times(10, 20, 30)}))
    ratio = paired_ratio({0: 20, 1: 42, 2: 57}, {0: 10, 1: 20, 2: 30})
    assert (
        text
        == "asp reaches 90.0% first, after 20.0 s (95% interval 0.0 to 44.8); bsp, the next, takes"
        f" 2.00 times as long (95% interval {ratio.low:.2f} to {ratio.high:.2f}). Its final"
        " accuracy is 95.0%."
    )
    assert led_by(made({"bsp": times(20, 42, 57), "asp": times(10, 20, 30)})) == (
        "asp",
        "at the target",
    )


def test_who_cannot_be_told_apart_is_no_winner(made):
    collection = made(
        {
            "bsp": times(20, 42, 57),
            "asp": times(10, 20, 30),
            "ssp": times(14, 16, 33),
            "x": times(12, 19, 33),
        }
    )
    text = answer(collection)
    assert "asp reaches 90.0% after 20.0 s" in text
    assert (
        "the best mean, but with 3 common seeds it cannot be told apart from ssp (1.07 times as"
        " long, 95% " in text
    )
    assert "), x (1.08 times as long, 95% interval " in text
    assert "; bsp takes 2.00 times as long (" in text
    assert " first" not in text
    assert led_by(collection) == ("asp", "not clear")


def test_the_first_is_clearly_ahead_of_each_and_not_of_the_next_alone(made):
    """The next is steady and clearly behind; the third has a worse mean, but varies so much that it
    may be as fast.
    """
    collection = made({"asp": times(10, 20, 30), "ssp": times(12, 24, 37), "bsp": times(9, 30, 60)})
    text = answer(collection)
    assert "asp reaches 90.0% after 20.0 s" in text
    assert "it cannot be told apart from bsp (" in text
    assert "ssp takes 1.2" in text
    assert led_by(collection) == ("asp", "not clear")


def test_the_same_to_a_reader(made):
    """However sure a difference of a thousandth is."""
    results = {
        "bsp": times(10.01, 20.02, 30.03),
        "asp": times(10, 20, 30),
        "ssp": times(30, 60, 90),
    }
    text = answer(made(results))
    assert "asp reaches 90.0% first" in text
    assert "and so does bsp, the same to 0.5%; ssp, the next, takes 3.00 times as long." in text
    assert led_by(made(results)) == ("asp", "not clear"), "of the same nobody leads"
    doubtful = answer(made({"bsp": times(10.01, 20.04, 60), "asp": times(10, 20, 30)}))
    assert "the same" not in doubtful, "one end of the interval is not enough"


def test_one_seed_has_no_interval(made):
    text = answer(made({"bsp": times(20), "asp": times(10)}))
    assert text.startswith(
        "asp reaches 90.0% first, after 10.0 s; bsp, the next, takes 2.00 times as long."
    )
    assert text.endswith("One seed: no interval, so a difference cannot be told from chance.")
    assert "95% interval" not in text
    assert led_by(made({"bsp": times(20), "asp": times(10)})) == ("asp", "one seed")


def test_reaching_it_always_comes_before_reaching_it_soon(made):
    text = answer(
        made({"bsp": times(20, 21, 22), "asp": times(10, None, 11), "ssp": times(None, None, None)})
    )
    assert text.startswith(
        "bsp reaches 90.0% after 21.0 s (95% interval 18.5 to 23.5); no other paradigm does so in"
        " as many of its repeats. "
    )
    lucky = made({"bsp": times(20, 21, 22), "asp": times(10, 10.5, None), "ssp": times(40, 42, 44)})
    assert led_by(lucky) == ("bsp", "not clear"), "in two repeats of three asp took less"
    assert (
        overall(lucky) == "bsp is the first to reach 90.0%, but not clearly: asp could be as fast."
    )
    assert (
        "Not every repeat reached 90.0%: asp 2 of 3, ssp 0 of 3; the times are means over"
        " those that did, and there asp took" in text
    )


def test_a_mean_over_some_says_so(made):
    text = answer(made({"asp": times(10, None, 12)}))
    assert "asp reaches 90.0% first" not in text
    assert "2 of 3 repeats" in text
    assert "there is no other paradigm to compare it with" in text


def test_nobody_else_reached_it(made):
    text = answer(made({"bsp": times(None, None), "asp": times(10, 11)}))
    assert "asp reaches 90.0% after 10.5 s" in text
    assert "; no other paradigm does." in text


def test_nobody_reached_it(made):
    text = answer(
        made(
            {
                "bsp": times(None, None, accuracy=0.7),
                "asp": times(None, None, accuracy=0.6, seconds=50.0),
            }
        )
    )
    assert text.startswith(
        "No repeat reached 90.0% (0 of 4). bsp has the best final accuracy of 70.0% after the same"
        " work; asp, the next, has 10 points less."
    )
    assert (
        "asp finishes the whole work first, after 50.0 s; bsp, the next, takes 2.00 times as long."
        in text
    )


def test_no_target(made):
    accuracies = {"bsp": (0.91, 0.93, 0.92), "asp": (0.90, 0.95, 0.91)}
    text = answer(
        made(
            {
                label: [{"final_accuracy": one, "seconds": 10.0 + index} for one in found]
                for index, (label, found) in enumerate(accuracies.items())
            },
            target=None,
        )
    )
    assert text.startswith(
        "No target was given. bsp has a final accuracy of 92.0% (95% interval 89.5% to 94.5%) after"
        " the same work, the best mean, but with 3 common seeds it cannot be told apart from asp ("
    )
    assert (
        "bsp finishes the whole work first, after 10.0 s; asp, the next, takes 1.10 times as long."
        in text
    )


def test_perplexity(made):
    summaries = {
        label: [
            {"final_perplexity": value * seed, "seconds": 1.0, "tokens": True} for seed in (1, 2, 3)
        ]
        for label, value in (("bsp", 4.0), ("asp", 3.0))
    }
    text = answer(made(summaries, target=None))
    assert "asp has the best final perplexity of 6.00 (95% interval " in text
    assert "bsp, the next, has 1.33 times that." in text


def test_timing_only(made):
    text = answer(
        made({"bsp": [{"seconds": 3.0}] * 2, "asp": [{"seconds": 2.0}] * 2}, timing="only")
    )
    assert (
        text
        == "asp finishes the whole work first, after 2.00 s; bsp, the next, takes 1.50 times as"
        " long."
    )


def test_the_accuracy_that_speed_costs(made):
    text = answer(made({"bsp": times(20, 42, 57, accuracy=0.99), "asp": times(10, 20, 30)}))
    assert text.endswith("Its final accuracy is 95.0%; bsp has 4 points more.")


def test_what_did_not_finish_is_named(made):
    results = {
        "bsp": [*times(20, 21), times(None, status="diverged")[0]],
        "asp": times(10, 11, "lost"),
    }
    text = answer(made(results))
    assert "Diverged: bsp 1 of 3. Failed: asp 1 of 3." in text
    assert "bsp 2 of 3" in text


@pytest.mark.parametrize(
    "results",
    [
        {"bsp": times("lost", "lost"), "asp": times(None, status="failed")},
        {"bsp": times(None, status="unfinished")},
    ],
)
def test_no_result_at_all(made, results):
    text = answer(made(results))
    assert "No run finished its work." in text
    assert led_by(made(results)) == ("", "none")


def test_pairs_in_which_one_did_not_reach_it(made):
    text = answer(made({"bsp": times(20, 41, 60, None), "asp": times(10, 20, None, 30)}))
    assert (
        "bsp, the next, takes 2.02 times as long (95% interval 1.73 to 2.37, 2 of 4 common seeds)."
        in text
    )


def test_no_seed_in_common(made):
    collection = made({"bsp": times(20, None), "asp": times(None, 10)})
    assert "asp is the next" in answer(collection) or "bsp is the next" in answer(collection)
    assert "no seed has a result of both" in answer(collection)


@pytest.mark.parametrize(
    ("results", "says"),
    [
        (
            {"bsp": times(20, 42, 57), "asp": times(10, 20, 30), "ssp": times(9, 40, 20)},
            "asp is the first to reach 90.0%, but not clearly: ssp could be as fast.",
        ),
        (
            {"bsp": times(20), "asp": times(10)},
            "asp was the first to reach 90.0%; more common seeds would tell whether it always is.",
        ),
        ({"asp": times(10, 20, 30)}, ""),
        ({"bsp": times(None, None), "asp": times(None, None)}, ""),
    ],
)
def test_one_line_says_who_is_first_and_how_surely(made, results, says):
    assert overall(made(results)) == says


def together(made, **scenarios):
    """Several scenarios in one collection."""
    parts = [made(found, scenario=f"a={name}") for name, found in scenarios.items()]
    return Collection(parts[0].paths, tuple(run for part in parts for run in part.runs))


CLEAR = {"bsp": times(20, 42, 57), "asp": times(10, 20, 30)}
NARROW = {"bsp": times(20, 20, 21), "asp": times(10, 20, 30)}
NOBODY = {"bsp": times(None, status="failed")}
UNMET = {"bsp": times(None, None, seconds=50.0), "asp": times(None, None, seconds=20.0)}


def test_several_scenarios(made):
    one, both = made(CLEAR, scenario="a=c"), together(made, c=CLEAR, n=NARROW)
    assert overall(one) == "asp is clearly the first to reach 90.0%."
    assert (
        overall(both)
        == "Of 2 scenarios: asp is clearly the first to reach the target in 1; in 1 the leaders"
        " cannot be told apart."
    )
    assert [(ranking.scenario, sentences.answer(ranking)) for ranking in rank_all(both)] == [
        ("a=c", answer(one, "a=c")),
        ("a=n", answer(made(NARROW, scenario="a=n"), "a=n")),
    ]
    assert (
        overall(together(made, x=NOBODY, y=NOBODY)) == "In none of 2 scenarios is there a result."
    )


def test_the_headline_counts_no_leader_that_the_sentences_below_do_not_have(made):
    """Two seeds that cannot tell, a single seed, a single paradigm, and a target that no repeat
    reached.
    """
    one_seed, alone = {"bsp": times(20), "asp": times(10)}, {"asp": times(10, 11, 12)}
    assert (
        overall(together(made, a=NARROW, b=one_seed))
        == "In none of 2 scenarios is a paradigm clearly first: in 1 the leaders cannot be told"
        " apart; in 1 fewer than two seeds are common, so chance cannot be ruled out."
    )
    assert (
        overall(together(made, a=CLEAR, b=CLEAR, c=alone, d=alone, e=alone, f=NOBODY))
        == "Of 6 scenarios: asp is clearly the first to reach the target in 2; in 3 only one"
        " paradigm has a result; in 1 there is no result."
    )
    assert (
        overall(together(made, a=UNMET, b=CLEAR))
        == "Of 2 scenarios: asp is clearly the first to finish the whole work in 1; asp is clearly"
        " the first to reach the target in 1."
    )


results = st.dictionaries(
    st.sampled_from(["bsp", "asp", "ssp"]),
    min_size=1,
    values=st.lists(
        st.tuples(
            st.none() | st.floats(0.001, 1e5),
            st.floats(0, 1),
            st.sampled_from(["finished", "diverged", "failed", "unfinished", "stopped"]),
        ),
        min_size=1,
        max_size=4,
    ),
)


@settings(max_examples=50)
@given(results, st.sampled_from([TARGET, None]), st.sampled_from(["with-gradients", "only"]))
def test_any_results_have_an_answer(found, target, timing):
    file = {"engine": "virtual", "target": target, "timing": timing}
    runs = [
        Run(
            StandIn(
                file,
                {
                    "time_to_target_s": seconds,
                    "final_accuracy": accuracy,
                    "seconds": seconds,
                    "status": status,
                },
                None,
            ),
            label,
            seed,
        )
        for label, repeats in found.items()
        for seed, (seconds, accuracy, status) in enumerate(repeats)
    ]
    collection = Collection((), tuple(runs))
    text = answer(collection)
    name, sure = led_by(collection)
    said = {
        "at the target": f"{name} reaches 90.0% first",
        "with the work": f"{name} finishes the whole work first",
    }
    assert said.get(sure, "") in text, "the headline says no more than the sentences"
    assert text.endswith(".")
    assert "nan" not in text
    assert "None" not in text
    frame = table(collection)
    ranking = rank(collection)
    first = (ranking.to_target or ranking.whole_work).first
    if first.value.count:
        assert first.paradigm in text
    for measure in columns(collection):
        assert (frame[f"{measure.key}_count"] <= frame["repeats"]).all()
        there = frame.dropna(subset=[f"{measure.key}_low"])
        assert (there[f"{measure.key}_low"] <= there[measure.key]).all()
        assert (there[measure.key] <= there[f"{measure.key}_high"]).all()


def test_the_table_s_numbers_are_the_records_means(sweep):
    for scenario, groups in sweep.scenarios().items():
        frame = table(sweep, scenario)
        assert tuple(frame.index) == LABELS
        for label, runs in groups.items():
            lost = len(sweep.failures(scenario, label))
            for measure in columns(sweep, scenario):
                found = estimate([*(run.value(measure.key) for run in runs), *[None] * lost])
                row = frame.loc[label]
                numbers = [row[measure.key], row[f"{measure.key}_low"], row[f"{measure.key}_high"]]
                expected = [
                    np.nan if one is None else one for one in (found.mean, found.low, found.high)
                ]
                np.testing.assert_array_equal(numbers, expected)
                assert row[f"{measure.key}_count"] == found.count
                assert (
                    f"({found.count} of {found.total})" in cell(row, measure)
                    or found.complete
                    or not found.count
                )
    assert frame["statuses"].to_dict() == {
        "bsp": "",
        "asp": "1 diverged, 1 failed",
        "lagtuner(bound=hard)": "",
    }
    assert frame.loc["asp", "repeats"] == 5


def test_a_diverged_run_counts_and_has_no_result(made):
    frame = table(
        made(
            {
                "bsp": [
                    *times(20, 21),
                    times(None, status="diverged", throughput_samples_per_s=9.0)[0],
                ]
            }
        )
    )
    row = frame.loc["bsp"]
    assert (row["repeats"], row["finished"], row["statuses"]) == (3, 2, "1 diverged")
    assert (
        row["final_accuracy_count"],
        row["seconds_count"],
        row["throughput_samples_per_s_count"],
    ) == (2, 2, 1)


def test_the_median_run_s_table(made):
    collection = made(
        {
            "bsp": [*times(20, accuracy=0.9), *times(30, accuracy=0.8), *times(40, accuracy=0.95)],
            "asp": times("lost", "lost", 3.0),
        }
    )
    frame = table(collection, median=True)
    assert frame.loc["bsp", "seed"] == 0
    assert frame.loc["bsp", "time_to_target_s"] == 20
    assert pd.isna(frame.loc["bsp", "time_to_target_s_low"])
    assert frame.loc["asp", "time_to_target_s_count"] == 0
    assert pd.isna(frame.loc["asp", "seed"])
    to_target = measures_for(collection.success(""))[1]
    assert [cell(frame.loc[label], to_target) for label in ("bsp", "asp")] == ["20.0", "none of 1"]


def test_published_beside_measured(made):
    rows = {
        "bsp": {"time_to_target_s": 100.0, "final_loss": 1.0},
        "asp": {"time_to_target_s": 50.0},
        "ssp": {"time_to_target_s": None},
    }
    measured = {"bsp": times(20, 42, 57), "asp": times(10, 20, 30), "ssp": times(1, 2, 3)}
    published = {"source": "a paper", "rows": rows, "relative_to": "bsp"}
    collection = made(measured, published=published)
    frame = table(collection)
    ratio = paired_ratio(
        *(
            by_seed(collection.scenarios()[""][label], "time_to_target_s")
            for label in ("asp", "bsp")
        )
    )
    asp = frame.loc["asp"]
    assert asp["time_to_target_s_ratio"] == ratio.mean == pytest.approx(1 / 2, rel=0.01)
    assert (asp["time_to_target_s_ratio_low"], asp["time_to_target_s_ratio_high"]) == (
        ratio.low,
        ratio.high,
    )
    assert asp["time_to_target_s_published_ratio"] == 0.5
    assert frame.loc["bsp", "time_to_target_s_ratio"] == 1
    assert pd.isna(frame.loc["ssp", "time_to_target_s_published_ratio"])
    assert "final_loss" in [measure.key for measure in columns(collection)]
    without = table(made(measured, published=published | {"relative_to": None}))
    assert without["time_to_target_s_published"].tolist()[:2] == [100, 50]
    assert "time_to_target_s_ratio" not in without


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "0.0123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
        (1234.5, "1,234"),
        (0.0, "0"),
        (99.99, "100"),
        (0.09999, "0.100"),
    ],
)
def test_three_digits(value, text):
    assert format(value, seconds_form(value)) == text


def test_a_cell():
    assert with_interval(3.42, 3.1, 3.74, 3, 3, seconds_form) == "3.42 ± 0.32"
    assert with_interval(3.42, None, None, 1, 3, seconds_form) == "3.42 (1 of 3)"
    assert with_interval(3.42, 3.4199, 3.4201, 2, 2, seconds_form) == "3.42"
    assert with_interval(float("nan"), None, None, 0, 3, seconds_form) == "none of 3"
    assert with_interval(None, None, None, 0, 0, seconds_form) == "-"


def test_columns_of_each_kind():
    def keys(*of):
        return [measure.key for measure in measures_for(Success(*of))]

    met = Target(**TARGET)
    assert keys(None, None)[0] == "seconds"
    assert keys(PERPLEXITY, met)[:3] == ["final_perplexity", "time_to_target_s", "seconds"]
    assert keys(ACCURACY, None)[:3] == ["final_accuracy", "seconds", "converged_accuracy"]
    assert keys(RMSE, met)[:3] == ["final_rmse", "time_to_target_s", "seconds"]
    assert "converged_accuracy" not in keys(RMSE, met)
    assert len(set(keys(ACCURACY, met))) == len(keys(ACCURACY, met))
