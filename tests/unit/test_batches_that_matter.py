"""The smallest batch that a task can compute, and metrics that depend on the batch."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given, settings as examples, strategies as st
from torch import nn

import raysync
from raysync import config
from raysync.config import ParadigmChoice
from raysync.errors import ConfigError
from raysync.predict.advise import advise
from raysync.training.models.initial_model import InitialModel
from raysync.training.preparation import prepare
from raysync.training.task import Average
from raysync.training.trials.batch_metrics import batch_metrics
from raysync.training.trials.smallest_batch import smallest_batch
from raysync.training.worker.gradient import cut_batch
from tests.builders.messages import naming
from tests.builders.tasks import Cut, Pairs

QUICK = {
    "engine": "virtual",
    "workers": [{"name": "fast", "step_s": 0.1}, {"name": "slow", "step_s": 2.0}],
    "batch_size": 6,
    "workload": {"samples": 120},
    "evaluation": {"marks": 2},
}


@pytest.fixture(autouse=True)
def _records_in_a_folder_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Normalised(Cut):
    """Batch norm needs two samples."""

    def build_model(self):
        return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 1))


class AtLeast(Cut):
    """A loss that needs so many samples."""

    def __init__(self, least, is_silent=False):
        self.least, self.is_silent = least, is_silent

    def criterion(self, output, batch):
        loss = super().criterion(output, batch)
        if len(output) >= self.least:
            return loss
        if self.is_silent:
            return loss * float("nan")
        raise ValueError("too few")


def prepared(task, **more):
    return prepare(config.validate(QUICK | more), task=task)


# ---- the smallest batch ----


@examples(max_examples=20)
@given(least=st.integers(1, 6), is_silent=st.booleans())
def test_the_smallest_batch_is_what_the_task_needs(least, is_silent):
    plan = prepared(AtLeast(least, is_silent), batch_size=8, paradigm="balanced")
    assert plan.smallest_batch == least


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"batch_size": 1}, "batch_size: 1"),
        ({"micro_batch": 1}, "micro_batch: 1"),
        ({"batch_size": 5, "micro_batch": 4, "paradigm": "balanced"}, "micro_batch"),
        ({"workers": [{"name": "a"}, {"name": "b", "batch_size": 1}]}, "workers: b: batch_size: 1"),
        ({"workers": [{"devices_per_worker": 2, "batch_size": 3}]}, "batch_size: 3"),
    ],
    ids=str,
)
def test_a_setting_that_leads_to_smaller_batches_is_refused_by_its_name(settings, named):
    task = AtLeast(3) if settings.get("micro_batch") == 4 else Normalised()
    with pytest.raises(ConfigError, match=naming(named)):
        prepared(task, **settings)
    prepared(Cut(), **settings)


def test_a_task_that_fails_at_every_size_is_not_said_to_need_more():
    with pytest.raises(ConfigError, match="too few") as raised:
        prepared(AtLeast(99), batch_size=1)
    assert "batch_size" not in str(raised.value)


@pytest.mark.parametrize(("inner", "devices", "samples"), [("bsp", 1, 120), ("asp", 2, 600)])
def test_balanced_gives_no_device_fewer_samples_than_it_can_compute(inner, devices, samples):
    settings = QUICK | {
        "workers": [group | {"devices_per_worker": devices} for group in QUICK["workers"]],
        "paradigm": {"name": "balanced", "paradigm": inner},
        "workload": {"samples": samples},
    }
    record = raysync.run(settings, task=Normalised())
    assert record.pushes.samples.min() == 2 * devices, "the slow worker would get fewer"
    groups = record.summary["paradigm_parameters"]["workers"]
    assert {group["min_batch"] for group in groups.values()} == {2}, "for a replay"
    if devices == 1:
        assert raysync.run(settings, task=Cut()).pushes.samples.min() == 1


@examples(max_examples=25)
@given(st.integers(2, 6), st.integers(1, 9), st.integers(1, 3), st.integers(1, 6))
def test_no_share_that_is_allowed_is_cut_into_smaller_pieces(least, micro, devices, multiple):
    """What is not refused holds for every share that `balanced` may give, also large ones."""
    group = {"devices_per_worker": devices, "batch_size": 24 * multiple * devices}
    settings = {"workers": [group], "micro_batch": micro}
    settings["paradigm"] = {"name": "balanced", "multiple": multiple}
    experiment = config.validate(QUICK | settings)
    task = AtLeast(least)
    model = InitialModel(task)
    try:
        smallest = smallest_batch(experiment, model, model.build(0), 24)
    except ConfigError:
        return
    assert smallest == least
    first = -(-least * devices // multiple) * multiple
    for share in range(first, 300, multiple):
        assert min(map(min, cut_batch(share, devices, micro))) >= least


def test_trying_changes_no_run():
    """Neither generators nor weights nor statistics: the run is the same to the last bit."""
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    assert prepared(Normalised(), paradigm="balanced").smallest_batch == 2
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()
    weights, of_tried = (
        raysync.run(QUICK | more, task=Normalised()).state_dict()
        for more in ({}, {"paradigms": ["bsp", "balanced"]})
    )
    torch.testing.assert_close(weights, of_tried, rtol=0, atol=0)


def test_nothing_is_tried_where_nothing_is_trained():
    settings = {"timing": "only", "micro_batch": 1, "paradigm": "balanced"}
    assert prepared(Normalised(), **settings).smallest_batch == 1


class Advised(Normalised):
    """It has a validation set, which advice needs."""

    def validation_set(self):
        return self.test_set()


def test_advice_divides_no_batch_into_parts_that_are_too_small():
    """Its candidates are divided though the experiment itself is not."""
    target = {"metric": Advised().primary, "at_most": 1e-9}
    named = QUICK | {"task": f"{__name__}:Advised", "paradigm": "bsp", "target": target}
    answer = advise(config.validate(named), choices=[ParadigmChoice(name="balanced")])
    [balanced] = answer.comparison.predictions
    assert min(balanced.shares.values()) == 2


# ---- metrics that depend on the batch ----


def recall(outputs, batch, best):
    """The share of samples whose target is among the best of the batch."""
    found = torch.cdist(outputs, batch[1][:, None]).topk(best, largest=False).indices
    return (found == torch.arange(len(outputs))[:, None]).any(1).float().mean()


class Measured(Cut):
    """Metrics of which only some are those of samples."""

    def metrics(self, model, batch):
        output = model(batch[0])
        return {
            "loss": self.criterion(output, batch),
            "mae": (output.squeeze(1) - batch[1]).abs().mean(),
            "tokens": Average(float(output.sum()), 2 * len(output)),
            "drawn": torch.rand(()),
            "recall": recall(output, batch, best=1),
        }


class FewFail(Measured):
    def metrics(self, model, batch):
        output = model(batch[0])
        return {"loss": self.criterion(output, batch), "recall": recall(output, batch, best=5)}

    def test_set(self):
        return Pairs(12)


class NoStatistics(Cut):
    """The model itself looks at the whole batch, also in an evaluation."""

    def build_model(self):
        norm = nn.BatchNorm1d(5, track_running_stats=False)
        return nn.Sequential(nn.Linear(4, 5), norm, nn.Linear(5, 1))


@pytest.mark.parametrize(
    ("task", "names"),
    [(Cut(), ()), (Measured(), ("recall",)), (FewFail(), ("recall",)), (NoStatistics(), ("loss",))],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("seed", range(3))
def test_metrics_that_depend_on_the_batch_are_found(task, names, seed):
    model = InitialModel(task)
    module = model.build(seed)
    before = deepcopy(module.state_dict())
    assert batch_metrics(model, module, 32) == names
    torch.testing.assert_close(module.state_dict(), before, rtol=0, atol=0)


def test_objects_of_torchmetrics_gather_over_batches():
    torchmetrics = pytest.importorskip("torchmetrics")

    class Gathered(Cut):
        def __init__(self):
            self.mse = torchmetrics.MeanSquaredError()

        def metrics(self, model, batch):
            self.mse.update(model(batch[0]).squeeze(1), batch[1])
            return {"mse": self.mse}

    task = Gathered()
    assert prepared(task).batch_metrics == ()
    assert task.mse.update_count == 0


def test_the_user_and_the_record_are_told_once():
    said = []
    record = raysync.run(QUICK, task=Measured(), notify=said.append)
    assert record.summary["batch_metrics"] == ["recall"]
    assert len([text for text in said if "recall" in text and "evaluation.batch_size" in text]) == 1
    assert raysync.run(QUICK, task=Cut()).summary["batch_metrics"] == []
