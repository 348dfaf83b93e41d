"""What is said, and that it is no more than the numbers allow; and the tables beside it."""

import pytest
from hypothesis import given, settings, strategies as st

from raysync.config import Target
from raysync.core.metrics import ACCURACY, PERPLEXITY, PrimaryMetric
from raysync.results import sentences
from raysync.results.collection import Collection, Criteria, by_seed
from raysync.results.columns import (
    COMPUTE,
    DROPPED,
    EQUAL_TIME,
    LEAD_MAX,
    TRANSFER,
    Column,
    measures_for,
    ratio_text,
    seconds_form,
    shown,
    time_measure,
)
from raysync.results.markdown import markdown
from raysync.results.ranking import rank, rank_all
from raysync.results.statistics import Estimate, estimate, paired_ratio
from raysync.results.tables import distances, measures_of, range_text, rows_of, tables_of
from tests.builders.messages import tells
from tests.builders.reports import LABELS, TARGET, made_up

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
    leader = rank(collection).times.leader
    return leader.name, leader.sure


CLEAR = {"bsp": times(20, 42, 57), "asp": times(10, 20, 30)}
"""The pairs' ratios are 2.0, 2.1, 1.9."""
NARROW = {"bsp": times(20, 20, 21), "asp": times(10, 20, 30)}
NOBODY = {"bsp": times(None, status="failed")}
UNMET = {"bsp": times(None, None, seconds=50.0), "asp": times(None, None, seconds=20.0)}
SAME = {"bsp": times(10.01, 20.02, 30.03), "asp": times(10, 20, 30), "ssp": times(30, 60, 90)}
LUCKY = {"bsp": times(20, 21, 22), "asp": times(10, 10.5, None), "ssp": times(40, 42, 44)}


def scored(metric, **values):
    """Summaries without a target: label -> the metric of each seed."""
    return {
        label: [{f"final_{metric}": one, "seconds": 10.0 + index} for one in found]
        for index, (label, found) in enumerate(values.items())
    }


CASES = {
    "a clear winner": (CLEAR, "asp", "clear"),
    "four that cannot be told apart": (
        CLEAR | {"ssp": times(14, 16, 33), "x": times(12, 19, 33)},
        "asp",
        "not clear",
    ),
    # The next is steady and clearly behind; the third has a worse mean, but may be as fast.
    "not of the next alone": (
        {"asp": times(10, 20, 30), "ssp": times(12, 24, 37), "bsp": times(9, 30, 60)},
        "asp",
        "not clear",
    ),
    "the same to a reader": (SAME, "asp", "not clear"),
    "one end of the interval is not enough": (
        {"bsp": times(10.01, 20.04, 60), "asp": times(10, 20, 30)},
        "asp",
        "not clear",
    ),
    "one seed": ({"bsp": times(20), "asp": times(10)}, "asp", "one seed"),
    "always before soon": (
        {"bsp": times(20, 21, 22), "asp": times(10, None, 11), "ssp": times(None, None, None)},
        "bsp",
        "not clear",
    ),
    "in two repeats of three another took less": (LUCKY, "bsp", "not clear"),
    "a mean over some": ({"asp": times(10, None, 12)}, "asp", "alone"),
    "nobody else reached it": ({"bsp": times(None, None), "asp": times(10, 11)}, "asp", "only"),
    "nobody reached it": (
        {
            "bsp": times(None, None, accuracy=0.7),
            "asp": times(None, None, accuracy=0.6, seconds=50.0),
        },
        "asp",
        "clear",
    ),
    "the accuracy that speed costs": (
        {"bsp": times(20, 42, 57, accuracy=0.99), "asp": times(10, 20, 30)},
        "asp",
        "clear",
    ),
    "some did not finish": (
        {"bsp": [*times(20, 21), times(None, status="diverged")[0]], "asp": times(10, 11, "lost")},
        "asp",
        "clear",
    ),
    "all lost or failed": ({"bsp": times("lost", "lost"), "asp": NOBODY["bsp"]}, "", "none"),
    "none finished": ({"bsp": times(None, status="unfinished")}, "", "none"),
    "pairs in which one did not reach it": (
        {"bsp": times(20, 41, 60, None), "asp": times(10, 20, None, 30)},
        "asp",
        "clear",
    ),
    "no seed in common": ({"bsp": times(20, None), "asp": times(None, 10)}, "asp", "one seed"),
    "no target": (
        scored("accuracy", bsp=(0.91, 0.93, 0.92), asp=(0.90, 0.95, 0.90)),
        "bsp",
        "clear",
    ),
    "perplexity": (
        {
            label: [
                {"final_perplexity": value * seed, "seconds": 1.0, "tokens": True}
                for seed in (1, 2, 3)
            ]
            for label, value in (("bsp", 4.0), ("asp", 3.0))
        },
        "bsp",
        "not clear",
    ),
    "timing only": ({"bsp": [{"seconds": 3.0}] * 2, "asp": [{"seconds": 2.0}] * 2}, "asp", "clear"),
}
SETTINGS = {
    "no target": {"target": None},
    "perplexity": {"target": None},
    "timing only": {"timing": "only"},
}


@pytest.mark.parametrize("case", CASES)
def test_who_leads_how_surely_and_how_it_is_said(made, snapshot, case):
    results, name, sure = CASES[case]
    collection = made(results, **SETTINGS.get(case, {}))
    assert led_by(collection) == (name, sure)
    assert f"{overall(collection)}\n{answer(collection)}" == snapshot


def test_the_next_is_behind_by_the_mean_of_the_pairs_ratios(made):
    """On the log scale, with its t interval; over the seeds that both have."""
    [versus] = rank(made(CLEAR)).times.behind
    assert versus.margin == paired_ratio({0: 20, 1: 42, 2: 57}, {0: 10, 1: 20, 2: 30})
    assert versus.margin.mean == pytest.approx((2.0 * 2.1 * 1.9) ** (1 / 3))
    [versus] = rank(made(CASES["pairs in which one did not reach it"][0])).times.behind
    assert (versus.margin.count, versus.margin.mean) == (2, pytest.approx((2.0 * 2.05) ** 0.5))


def behind_first(collection, key="time_to_target_s"):
    """How far each paradigm is behind the leader by a measure, as the tables show it."""
    [table] = tables_of(collection, rank(collection))
    [column] = (column for column in table.columns if column.key == f"{key}_behind")
    return {label: column.cell(row) for label, row in table.rows.items()}


def test_the_tables_show_how_far_the_others_are_behind(made):
    by = paired_ratio({0: 20, 1: 42, 2: 57}, {0: 10, 1: 20, 2: 30})
    assert behind_first(made(CLEAR)) == {"asp": "-", "bsp": f"2.00 ({by.low:.2f} to {by.high:.2f})"}
    pairs = made(CASES["pairs in which one did not reach it"][0])
    assert behind_first(pairs)["bsp"] == "2.02 (1.73 to 2.37; 2 of 4 seeds)"
    assert behind_first(made(CASES["one seed"][0]))["bsp"] == "2.00"
    unreached = made(CASES["nobody reached it"][0])
    assert behind_first(unreached, "seconds")["bsp"] == "2.00"
    assert behind_first(unreached, "final_accuracy")["asp"] == "10"
    apart = distances(rank(made(CASES["no seed in common"][0])))
    assert "time_to_target_s_behind" not in [column.key for column, _ in apart]


def test_of_many_that_cannot_be_told_apart_only_some_are_named(made):
    collection = made({name: times(10, 20 + number, 30) for number, name in enumerate("abcdefg")})
    assert len(rank(collection).times.leader.doubtful) == 6
    assert "3 more" in answer(collection)


def test_who_is_the_same_or_clearly_behind(made):
    same, far = rank(made(SAME)).times.behind
    assert (same.other.paradigm, same.is_alike, same.is_clear) == ("bsp", True, False)
    assert (far.other.paradigm, far.is_alike, far.is_clear) == ("ssp", False, True)
    assert rank(made(LUCKY)).times.leader.doubtful == ("asp",)


def together(made, **scenarios):
    """Several scenarios in one collection."""
    parts = [made(found, scenario=f"a={name}") for name, found in scenarios.items()]
    return Collection(parts[0].paths, tuple(run for part in parts for run in part.runs))


def test_several_scenarios_are_summed_up_and_each_answered_as_by_itself(made, snapshot):
    """Leaders that two seeds cannot tell, a single seed, a single paradigm, and a target that no
    repeat reached, are not counted as clear.
    """
    one_seed, alone = CASES["one seed"][0], {"asp": times(10, 11, 12)}
    summed = {
        "clear and not": together(made, c=CLEAR, n=NARROW),
        "nothing": together(made, x=NOBODY, y=NOBODY),
        "none is clear": together(made, a=NARROW, b=one_seed),
        "all kinds": together(made, a=CLEAR, b=CLEAR, c=alone, d=alone, e=alone, f=NOBODY),
        "at the target and with the work": together(made, a=UNMET, b=CLEAR),
    }
    assert [
        (ranking.scenario, *said_of(ranking)) for ranking in rank_all(summed["clear and not"])
    ] == [
        (f"a={name}", *said_of(rank(made(found, scenario=f"a={name}"), f"a={name}")))
        for name, found in {"c": CLEAR, "n": NARROW}.items()
    ]
    assert {name: overall(collection) for name, collection in summed.items()} == snapshot


def said_of(ranking):
    return ranking.times.leader, sentences.answer(ranking)


summaries = st.fixed_dictionaries(
    {
        "time_to_target_s": st.none() | st.floats(0.001, 1e5),
        "final_accuracy": st.floats(0, 1),
        "status": st.sampled_from(["finished", "diverged", "failed", "unfinished", "stopped"]),
    }
).map(lambda one: one | {"seconds": one["time_to_target_s"]})
results = st.dictionaries(
    st.sampled_from(["bsp", "asp", "ssp"]), st.lists(summaries, min_size=1, max_size=4), min_size=1
)


@settings(max_examples=50)
@given(results, st.sampled_from([TARGET, None]), st.sampled_from(["with-gradients", "only"]))
def test_any_results_have_an_answer(found, target, timing):
    collection = made_up(found, target=target, timing=timing)
    text = answer(collection)
    _, sure = led_by(collection)
    final = rank(collection).final
    sures = {sure} | ({final.leader.sure} if final else set())
    assert ("clearly" in text) <= bool(sures & {"clear", "not clear"})
    assert text.endswith(".")
    assert "nan" not in text
    assert "None" not in text
    ranking = rank(collection)
    first = (ranking.to_target or ranking.whole_work).first
    if first.value.count:
        assert first.paradigm in text
    for row in rows_of(collection).values():
        for value in (row[measure.key] for measure in measures_of(collection)):
            assert value.count <= value.total
            assert value.low is None or value.low <= value.mean <= value.high


def test_the_table_s_numbers_are_the_records_means(sweep):
    for scenario, groups in sweep.scenarios.items():
        rows = rows_of(sweep, scenario)
        assert tuple(rows) == LABELS
        for label, runs in groups.items():
            lost = len(sweep.failures(scenario, label))
            of_records = [each for each in measures_of(sweep, scenario) if each.key != EQUAL_TIME]
            for measure in of_records:
                found = estimate([*(run.value(measure.key) for run in runs), *[None] * lost])
                row = rows[label]
                assert row[measure.key] == found
                if found.count and not found.complete:
                    assert f"({found.count} of {found.total})" in measure.cell(row)
    assert [row["repeats"] for row in rows.values()] == ["3", "5 (1 diverged, 1 failed)", "3"]


def test_a_diverged_run_counts_and_has_no_result(made):
    diverged = times(None, status="diverged", throughput_samples_per_s=9.0)
    row = rows_of(made({"bsp": [*times(20, 21), *diverged]}))["bsp"]
    assert row["repeats"] == "3 (1 diverged)"
    keys = "final_accuracy", "seconds", "throughput_samples_per_s"
    assert [row[key].count for key in keys] == [2, 2, 1]


def test_the_median_run_s_table(made):
    collection = made(
        {
            "bsp": [*times(20, accuracy=0.9), *times(30, accuracy=0.8), *times(40, accuracy=0.95)],
            "asp": times("lost", "lost", 3.0),
        }
    )
    rows = rows_of(collection, median=True)
    assert [row["seed"] for row in rows.values()] == ["0", None]
    to_target = time_measure(collection.criteria(""))
    assert [to_target.cell(row) for row in rows.values()] == ["20.0", "-"]


def test_published_beside_measured(made):
    rows = {
        "bsp": {"time_to_target_s": 100.0, "final_loss": 1.0},
        "asp": {"time_to_target_s": 50.0},
        "ssp": {"time_to_target_s": None},
    }
    measured = {"bsp": times(20, 42, 57), "asp": times(10, 20, 30), "ssp": times(1, 2, 3)}
    published = {"source": "Somebody 2020", "note": "On GPUs.", "relative_to": "bsp", "rows": rows}
    collection = made(measured, published=published)
    ratio = paired_ratio(
        *(by_seed(collection.scenarios[""][label], "time_to_target_s") for label in ("asp", "bsp"))
    )
    assert ratio.mean == pytest.approx(1 / 2, rel=0.01)
    _, beside = tables_of(collection, rank(collection))
    bsp, asp, ssp = (beside.rows[label] for label in rows)
    assert asp["time_to_target_s_ratio"] == range_text(ratio, ratio_text)
    assert bsp["time_to_target_s_ratio"] == "1.00"
    assert asp["time_to_target_s_published_ratio"] == 0.5
    assert ssp["time_to_target_s_published_ratio"] is None
    assert "final_loss" in [measure.key for measure in measures_of(collection)]
    assert beside.frame()["s to 90.0%, published"].to_list() == ["100", "50.0", "not reached"]
    assert beside.frame()["s to 90.0% / bsp, published"].to_list() == ["1.00", "0.500", "-"]
    assert tells(markdown(collection), "Published: Somebody 2020 On GPUs.")
    collection = made(measured, published=published | {"relative_to": None})
    _, beside = tables_of(collection, rank(collection))
    assert [row["time_to_target_s_published"] for row in beside.rows.values()][:2] == [100, 50]
    assert not any("ratio" in column.key for column in beside.columns)


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
    def cell(*numbers, **more):
        return Column("x", "x", **more).cell({"x": Estimate(*numbers)}, brief=bool(more))

    assert cell(3.42, 3.1, 3.74, 3, 3) == "3.42 ± 0.32"
    assert cell(3.42, 3.1, 3.74, 3, 3, interval=True) == "3.42 ± 0.32"
    assert cell(3.42, 3.1, 3.74, 3, 3, interval=False) == "3.42"
    assert cell(3.42, None, None, 1, 3) == "3.42 (1 of 3)"
    assert cell(3.42, 3.4199, 3.4201, 2, 2) == "3.42"
    assert cell(float("nan"), None, None, 0, 3) == "none of 3"
    assert cell(None, None, None, 0, 1) == cell(None, None, None, 0, 0) == "-"


def test_a_column_that_may_be_left_out_is_shown_where_its_number_is_visible():
    optional = [DROPPED, TRANSFER, COMPUTE, LEAD_MAX]

    def keys(*rows):
        return [column.key for column in shown(optional, rows)]

    assert keys({}, {"dropped": 0, "transfer_fraction": 0.004}) == ["lead_max"]
    assert keys({"dropped": None}, {"dropped": Estimate(0.5, 0, 1, 2, 2)})[0] == "dropped"
    for share in ("transfer_fraction", "server_fraction"):
        assert COMPUTE.key in keys({"busy_fraction": 0.5, share: 0.25}), "not what waiting leaves"
    assert COMPUTE.key not in keys({"busy_fraction": 0.5})


def test_columns_of_each_kind():
    def keys(*of):
        return [measure.key for measure in measures_for(Criteria(*of))]

    met = Target(**TARGET)
    assert keys(None, None)[0] == "seconds"
    of_time = ["at_equal_time", "time_to_target_s", "seconds"]
    assert keys(PERPLEXITY, met)[:4] == ["final_perplexity", *of_time]
    first = ["final_accuracy", "at_equal_time", "seconds", "converged_accuracy"]
    assert keys(ACCURACY, None)[:4] == first
    assert keys(RMSE, met)[:4] == ["final_rmse", *of_time]
    assert "converged_accuracy" not in keys(RMSE, met)
    assert len(set(keys(ACCURACY, met))) == len(keys(ACCURACY, met))


def test_a_mean_is_of_whole_works_where_there_are_any(made):
    whole = times(20, accuracy=0.9)[0]
    cut = whole | {"end": "cut", "ended_by": "stop.after_s", "progress": 0.2, "final_accuracy": 0.1}
    rows = rows_of(made({"bsp": [whole, cut, whole], "asp": [cut, cut, cut]}))
    found = [row["final_accuracy"] for row in rows.values()]
    assert {(round(value.mean, 3), value.count) for value in found} == {(0.9, 2), (0.1, 3)}


def test_one_paradigm_is_not_told_about_others(made):
    patience = {"end": "cut", "ended_by": "stop.patience", "progress": 0.2}
    one = {"asp": times(None, None, **patience)}
    assert "leads" not in answer(made(one))
    assert "leads" in answer(made(one | {"bsp": times(None, None, **patience)}))
