"""A leader with the first or last of its learning rates is said to have it."""

import pytest

import raysync
from raysync.results.collection import collect
from raysync.results.sentences import cautions
from tests.builders.messages import tells

QUICK = {
    "engine": "virtual",
    "model": {"name": "mlp", "hidden": [8]},
    "data": {"name": "digits", "train_samples": 600},
    "batch_size": 16,
    "workload": {"samples": 1600},
    "workers": [{"count": 2, "step_s": 0.1}],
    "update": {"lr_scaling": "none"},
}


TARGET = {"metric": "accuracy", "at_least": 0.3}


@pytest.mark.parametrize(
    ("rates", "edge", "target"),
    [
        ((0.001, 0.01, 0.1), "highest", None),
        ((0.001, 0.01, 0.1), "highest", TARGET),
        ((0.1, 20.0, 30.0), "lowest", None),
        ((0.001, 0.1, 30.0), "", None),
        ((0.01, 0.1), "", None),  # one of two is always the first or the last
    ],
)
def test_the_best_rate_is_compared_with_the_others(tmp_path, rates, edge, target):
    for lr in rates:
        row = {"name": "bsp", "set": {"update.lr": lr}}
        raysync.run(QUICK | {"paradigm": row, "target": target, "output": str(tmp_path)})
    another = {"name": "asp", "set": {"update.lr": 1e-6}}
    raysync.run(QUICK | {"paradigm": another, "target": target, "output": str(tmp_path)})
    collection = collect([tmp_path / "experiment"])
    said = [each for each in cautions(collection) if "learning rates" in each]
    assert len(said) == bool(edge)
    assert not edge or tells(said[0], f"0.1 {edge} {len(rates)}")


def test_rates_of_local_steps_and_of_smaller_pushes_are_others(tmp_path):
    """Each kind has two, which say nothing."""
    kinds = [
        lambda lr: {"update.lr": lr},
        lambda lr: {"update.lr": lr, "cluster.wire": "int8"},
        lambda lr: {"local": {"lr": lr, "steps": 2}, "update": {"lr": 1.0}},
    ]
    for number, kind in enumerate(kinds):
        for lr in (0.001 * (1 + number), 0.1):
            row = {"name": "bsp", "set": kind(lr)}
            raysync.run(QUICK | {"paradigm": row, "output": str(tmp_path)})
    assert not cautions(collect([tmp_path / "experiment"]))
