"""A paradigm is judged by its best rate, and one at the edge of the rates is said to be there."""

from dataclasses import replace

import pytest

from raysync.record.run_end import RunEnd
from raysync.results.collection import CollectedRun, Collection
from raysync.results.ranking import rank
from raysync.results.sentences import answer, cautions
from tests.builders.messages import tells
from tests.builders.reports import TARGET, StandIn


def row(label, accuracy, lr=1.0, target=None, tested=None, **settings):
    """The only run of a row of a comparison."""
    settings = {"engine": "virtual", "target": target, "update": {"lr": lr}} | settings
    seconds = {"seconds": 10.0, "time_to_target_s": 1 - accuracy}
    summary = {"final_accuracy": accuracy} | seconds
    summary |= {} if tested is None else {"final_test_accuracy": tested}
    return CollectedRun(StandIn(settings, summary, None), label, 0)


@pytest.mark.parametrize("target", [None, TARGET])
@pytest.mark.parametrize(
    ("rates", "edge"),
    [
        ((0.001, 0.01, 0.1), "highest"),
        ((0.1, 20.0, 30.0), "lowest"),
        ((0.001, 0.1, 30.0), ""),
        ((0.01, 0.1), ""),  # one of two is always the first or the last
    ],
)
def test_the_best_rate_is_compared_with_the_others(rates, edge, target):
    rows = [row(f"bsp({lr})", 0.9 if lr == 0.1 else 0.5, lr, target) for lr in rates]
    another = row("asp", 0.2, 1e-6, target, paradigm="asp")
    collection = Collection((), (*rows, another))
    said = [each for each in cautions(collection) if "learning rates" in each]
    assert len(said) == bool(edge)
    assert not edge or tells(said[0], f"bsp(0.1) {edge} {len(rates)}")


@pytest.mark.parametrize(
    "other",
    [
        lambda lr: {"lr": lr, "cluster": {"wire": "int8"}},
        lambda lr: {"local": {"lr": lr, "steps": 2}},
        lambda lr: {"update": {"lr": lr, "momentum": 0.9}},
        lambda lr: {"lr": lr, "paradigm": "asp"},
        lambda lr: {"lr": lr, "batch_size": 8},
        lambda lr: {"lr": lr, "network": {"push_s": 0.001}},
    ],
)
def test_rates_of_another_kind_are_others(other):
    """Each kind has two, which say nothing."""
    plain = [row("low", 0.5, 0.001), row("high", 0.9, 0.1)]
    others = [row(f"other {lr}", 0.2, **other(lr)) for lr in (0.002, 0.05)]
    collection = Collection((), (*plain, *others))
    assert not [each for each in cautions(collection) if "learning rates" in each]
    assert {len(choice.labels) for choice in rank(collection).rates} == {2}
    assert len(rank(collection).rates) == 2


def ranked(rows):
    ranking = rank(Collection((), tuple(rows)))
    return ranking, [each.paradigm for each in ranking.final.ranked]


def test_only_the_best_rate_of_a_paradigm_is_ranked():
    rows = [row(f"bsp({lr})", accuracy, lr) for lr, accuracy in ((0.1, 0.7), (1.0, 0.9))]
    ranking, names = ranked([*rows, row("asp", 0.8, paradigm="asp")])
    assert names == ["bsp(1.0)", "asp"]
    [choice] = ranking.rates
    assert (choice.label, choice.edge) == ("bsp(1.0)", "")
    assert tells(answer(ranking), "bsp(1.0) (of 2)")


def test_a_rate_is_chosen_by_the_validation_set_and_judged_by_the_test_set():
    rows = [
        row(f"bsp({lr})", validated, lr, tested=tested)
        for lr, validated, tested in ((0.1, 0.8, 0.6), (1.0, 0.7, 0.9))
    ]
    ranking, names = ranked(rows)
    assert names == ["bsp(0.1)"]
    assert ranking.final.first.value.mean == 0.6
    assert tells(answer(ranking), "bsp(0.1) test accuracy 60.0% validation set")


def test_a_rate_is_chosen_over_the_seeds_that_all_its_rates_have():
    """A comparison that was stopped has more seeds of some rows than of others."""
    good, bad = row("good", 0.9, 0.1), row("bad", 0.5, 1.0)
    lucky = replace(row("bad", 0.99, 1.0), seed=1)
    _, names = ranked([good, bad, lucky])
    assert names == ["good"]


def test_a_rate_that_diverges_in_some_seed_is_worse_than_one_that_never_does():
    steady, quick = row("steady", 0.5, 0.1), row("quick", 0.9, 1.0)
    diverged = replace(quick, seed=1, ended=RunEnd("diverged", "", 1.0, 0.1))
    _, names = ranked([steady, replace(steady, seed=1), quick, diverged])
    assert names == ["steady"]


def test_a_scenario_without_a_validation_set_is_judged_by_its_own_test_set():
    """Although another one of the same report has one."""
    plain = [row(label, final, paradigm=label) for label, final in (("bsp", 0.9), ("asp", 0.8))]
    validated = [
        replace(row(label, 0.5, paradigm=label, tested=0.7), scenario="data=other")
        for label in ("bsp", "asp")
    ]
    collection = Collection((), (*plain, *validated))
    judged = [rank(collection, scenario).final.first.value.mean for scenario in ("", "data=other")]
    assert judged == [0.9, 0.7]
