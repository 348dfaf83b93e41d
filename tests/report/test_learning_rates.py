"""A leader with the first or last of its learning rates is said to have it."""

import pytest

from raysync.results.collection import CollectedRun, Collection
from raysync.results.sentences import cautions
from tests.builders.messages import tells
from tests.builders.reports import TARGET, StandIn


def row(label, accuracy, lr=1.0, target=None, **settings):
    """The only run of a row of a comparison."""
    settings = {"engine": "virtual", "target": target, "update": {"lr": lr}} | settings
    seconds = {"seconds": 10.0, "time_to_target_s": 1 - accuracy}
    return CollectedRun(StandIn(settings, {"final_accuracy": accuracy} | seconds, None), label, 0)


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
    ],
)
def test_rates_of_another_kind_are_others(other):
    """Each kind has two, which say nothing."""
    plain = [row("low", 0.5, 0.001), row("high", 0.9, 0.1)]
    others = [row(f"other {lr}", 0.2, **other(lr)) for lr in (0.002, 0.05)]
    said = cautions(Collection((), (*plain, *others)))
    assert not [each for each in said if "learning rates" in each]
