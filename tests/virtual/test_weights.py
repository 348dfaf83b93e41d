"""Weights that a paradigm gives to pushes: factors under `combine: sum`, normalised in a mean."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

import raysync
from raysync import Apply, Capability, ConfigError, Release, config
from raysync.config import ParadigmChoice
from raysync.core.journal import Remark
from raysync.decoupled.plan import check_training
from raysync.paradigms import make
from raysync.paradigms.asp import ASP
from raysync.training.preparation import prepare
from tests.builders.messages import tells
from tests.builders.virtual import DATA, deep, learn, weights_of


@dataclass
class Weighted(ASP):
    """With a weight of its own for each push."""

    name: ClassVar[str] = "weighted"
    weight: float = 0.6

    def on_push(self, roster, push):
        return [Apply((push,), weights=(self.weight,)), Release(push[0])]

    def explain(self, roster, worker):
        return "it waits for nothing"


@dataclass
class Demanding(Weighted):
    def demands(self):
        yield Capability.SUM_GRADIENTS, f"weight: {self.weight}"


@dataclass
class Favouring(Weighted):
    """It applies all pushes of a round, and counts one."""

    def on_push(self, roster, push):
        if len(pushes := tuple(roster.buffered)) < 2:
            return []
        weights = tuple(self.weight * (each == push) for each in pushes)
        return [Apply(pushes, weights=weights), *(Release(worker) for worker, _ in pushes)]


@dataclass
class Hoarding(Weighted):
    """It keeps the pushes of one worker for ever."""

    def on_push(self, roster, push):
        decisions = super().on_push(roster, push)
        return decisions[1:] if push[0] == "worker-0#1" else decisions


def trained(weight, update, rule="Weighted"):
    """The driver of a finished run of two workers, and its lines."""
    settings = {
        "engine": "virtual",
        "batch_size": 4,
        "workers": [{"count": 2, "step_s": 0.1}],
        "workload": {"samples": 80},
        "update": update,
    }
    training = prepare(config.validate(settings), deep, DATA)
    choice = ParadigmChoice(name=f"{__name__}:{rule}", weight=weight)
    check_training(training, training.make(choice))
    lines, driver = learn(training, choice)
    return driver, lines


SUM = {"lr": 0.1, "combine": "sum", "lr_scaling": "none"}


def test_under_sum_a_weight_is_a_factor_of_the_learning_rate():
    driver, _ = trained(0.25, SUM)
    other, _ = trained(1.0, SUM | {"lr": 0.025})
    torch.testing.assert_close(weights_of(driver), weights_of(other), rtol=1e-5, atol=1e-7)
    assert not torch.allclose(weights_of(driver), weights_of(trained(1.0, SUM)[0]))


@pytest.mark.parametrize("rule", ["Weighted", "Favouring"])
@pytest.mark.parametrize("weight", [0.6, 1.0, 4])
def test_a_weight_without_effect_is_said_once(weight, rule):
    driver, lines = trained(weight, {"lr": 0.1}, rule)
    said = [
        line for line in lines if isinstance(line, Remark) and f"weight {weight:g}" in line.text
    ]
    assert len(said) == (weight == 0.6), "1 and the samples say what the mean does anyway"
    assert torch.equal(weights_of(driver), weights_of(trained(1.0, {"lr": 0.1}, rule)[0]))


def test_a_rule_that_needs_factors_is_refused_under_a_mean():
    trained(0.6, SUM, "Demanding")
    for update in ({"lr": 0.1}, {"lr": 0.1, "lr_scaling": "none"}):
        with pytest.raises(ConfigError, match="weight: 0.6"):
            trained(0.6, update, "Demanding")
    inner = make("ringmaster", paradigm=f"{__name__}:Demanding")
    assert Capability.SUM_GRADIENTS in {demand for demand, _ in inner.demands()}


def test_the_record_has_the_weights(tmp_path):
    record = raysync.run(
        {
            "engine": "virtual",
            "paradigm": {"name": f"{__name__}:Weighted", "weight": 0.5},
            "workers": [{"count": 2, "step_s": 0.1}],
            "workload": {"samples": 320},
            "update": SUM,
            "output": str(tmp_path),
        }
    )
    applied = record.pushes[record.pushes.outcome == "applied"]
    assert np.all(applied.weight == 0.5)


def test_a_run_says_that_pushes_were_kept():
    driver, lines = trained(1.0, {"lr": 0.1}, "Hoarding")
    [said] = [line.text for line in lines if isinstance(line, Remark)]
    roster = driver.topology.roster
    assert tells(said, f"{len(roster.buffered)} {roster.received}")
    assert len(roster.buffered) > 10
