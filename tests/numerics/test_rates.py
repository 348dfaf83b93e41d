"""The learning rate in force: what is printed is what the optimizer gets."""

import re
from functools import partial
from math import sqrt

import pytest
import torch
from hypothesis import given, strategies as st

import raysync
from raysync import config
from raysync.config import ParadigmChoice, Update
from raysync.core.events import Pushed
from raysync.paradigms import make
from raysync.training.optim.lr_schedule import rate_in_force
from raysync.training.preparation import prepare
from raysync.training.server.parameter_store import ParameterStore
from tests.builders.plain_torch import flat, trained_on_whole_batches
from tests.builders.tasks import Sums
from tests.builders.virtual import entries, learn, weights_of

pytestmark = pytest.mark.usefixtures("one_thread")

WORKERS, ROUNDS, BATCH = 3, 6, 16
SETTINGS = {
    "engine": "virtual",
    "data": {"name": "digits", "train_samples": 600},
    "batch_size": BATCH,
    "workers": [{"name": f"w{n}", "step_s": 1 + n} for n in range(WORKERS)],
    "workload": {"iterations_per_worker": ROUNDS},
    "evaluation": {"marks": 2},
}
CHOICE = ParadigmChoice(name="bsp")
KINDS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}
LINEAR, NONE = {"lr_scaling": "linear"}, {"lr_scaling": "none"}


approx = partial(pytest.approx, rel=1e-5)
"""A printed number has six digits."""


def printed(text):
    """The number that a printed rate ends in, before any remark in brackets."""
    return float(re.findall(r"\d[\d.]*(?:e-?\d+)?", text)[-1])


@pytest.mark.parametrize("scaling", [{}, LINEAR, NONE], ids=["default", "linear", "none"])
@pytest.mark.parametrize("name", KINDS)
def test_bsp_is_the_n_fold_batch_at_the_printed_rate(name, scaling):
    update = {"optimizer": name, "lr": 0.004, "weight_decay": 0.01, **scaling}
    training = prepare(config.validate(SETTINGS | {"update": update}))
    rate = printed(training.rate_in_force(CHOICE))
    expected = {"linear": 0.012, "none": 0.004}[training.experiment.update.lr_scaling]
    assert rate == pytest.approx(expected)
    _, driver = learn(training)
    sizes = [[BATCH] * WORKERS] * ROUNDS
    right, wrong = (
        flat(
            trained_on_whole_batches(
                training, partial(KINDS[name], lr=lr, weight_decay=0.01), sizes
            )
        )
        for lr in (rate, 3 * rate)
    )
    assert (weights_of(driver) - right).abs().max().item() < 1e-3
    assert (wrong - right).abs().max().item() > 3e-3


ADAPTIVE = ["adam", "AdamW", "adamax", "NAdam", "RAdam", "rmsprop", "Adagrad", "adadelta", "Rprop"]


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        *((name, "linear") for name in ("sgd", "SGD", "ASGD")),
        *((name, "none") for name in (*ADAPTIVE, "tests.builders.optimizers:Counting")),
        ({"name": "Adam", "amsgrad": True}, "none"),
    ],
)
def test_the_default_follows_the_optimizer_and_what_is_given_wins(optimizer, expected):
    update = Update(optimizer=optimizer)
    assert update.lr_scaling == expected
    assert "lr_scaling" not in update.model_fields_set
    for scaling in ("linear", "none", "inverse-root"):
        assert Update(optimizer=optimizer, lr_scaling=scaling).lr_scaling == scaling
        phases = {"asp": {"lr_scaling": scaling}}
        assert Update(optimizer=optimizer, phases=phases).in_phase("asp").lr_scaling == scaling


def test_a_sum_of_gradients_is_scaled_twice_only_where_it_is_scaled():
    assert Update(optimizer="adam", combine="sum").lr_scaling == "none"
    with pytest.raises(ValueError, match="lr_scaling: none"):
        Update(optimizer="sgd", combine="sum")


@pytest.mark.parametrize(("name", "expected"), [("sgd", "linear"), ("adamw", "none")])
def test_a_record_has_what_was_in_force_and_keeps_it(tmp_path, name, expected):
    settings = {"update": {"optimizer": name}, "output": str(tmp_path), "paradigm": "asp"}
    file = raysync.run(SETTINGS | settings).path / "config.yaml"
    assert config.load(file).update.lr_scaling == expected
    other = {"linear": "none", "none": "linear"}[expected]  # as an older default wrote it
    older = file.read_text().replace(f"lr_scaling: {expected}", f"lr_scaling: {other}", 1)
    file.write_text(older)
    assert prepare(config.load(file)).experiment.update.lr_scaling == other


class Bringing(Sums):
    """A task with settings of `update` of its own."""

    def __init__(self, **brought):
        super().__init__()
        self.brought = brought

    def update(self, model, file, epochs):
        return self.brought


@pytest.mark.parametrize(
    ("brought", "file", "expected"),
    [
        ({"lr": 0.5}, {}, "none"),
        ({"optimizer": "sgd", "lr": 0.05}, {}, "none"),
        ({"optimizer": "adam"}, {}, "none"),
        ({"optimizer": "adam", "lr_scaling": "linear"}, {}, "linear"),
        ({"lr": 0.5}, LINEAR, "linear"),
        ({"momentum": 0.9}, {}, "linear"),
        ({}, {}, "linear"),
    ],
)
def test_a_rate_that_the_task_brings_stays_as_it_is(brought, file, expected):
    settings = {**SETTINGS, "data": {"name": "digits"}, "update": file, "batch_size": 4}
    training = prepare(config.validate(settings), task=Bringing(**brought))
    assert training.experiment.update.lr_scaling == expected
    rate = printed(training.rate_in_force(CHOICE))
    assert rate == pytest.approx(brought.get("lr", 0.05) * (3 if expected == "linear" else 1))


# ---- the pushes of an update: see also tests/paper/test_pushes_per_update.py ----

MANY = {"name": "sync-switch", "then": ["asp", {"name": "k-sync", "k": 3}], "fraction": [0.3, 0.3]}
VARYING = make("quorum", k=2, grace_s=0.7)
"""Its updates take now as many pushes, now others."""


@pytest.mark.parametrize("scaling", ["linear", "inverse-root"])
def test_the_rate_of_each_phase_is_that_of_its_updates(monkeypatch, scaling):
    """What the optimizer gets, against what is said before the run."""
    update = {
        "lr": 0.04,
        "phases": {
            "asp": {"lr": 0.03, "lr_scaling": scaling},
            "k-sync": {"lr_scaling": "none", "lr": 0.02},
        },
    }
    training = prepare(config.validate(SETTINGS | {"paradigm": MANY, "update": update}))
    text = training.rate_in_force(training.experiment.paradigm)
    said = dict(re.findall(r"lr in ([\w-]+): (?:[^,]* = )?([\d.]+)", text))
    rates, apply = {}, ParameterStore.apply

    def applied(store, plan, vectors):
        apply(store, plan, vectors)
        [group] = store.state()["optimizer"]["param_groups"]
        rates.setdefault(plan.phase, set()).add(group["lr"])

    monkeypatch.setattr(ParameterStore, "apply", applied)
    lines, _ = learn(training, training.experiment.paradigm)
    assert lines[-1].status == "finished"
    assert rates.keys() == said.keys()
    assert all(float(said[phase]) in map(pytest.approx, rates[phase]) for phase in rates)


def test_a_rate_that_varies_is_said_without_a_number_of_pushes():
    text = rate_in_force(Update(lr=0.07), VARYING, 4)
    assert printed(text) == 0.07
    assert text != rate_in_force(Update(lr=0.07, lr_scaling="none"), VARYING, 4)
    assert printed(rate_in_force(Update(lr=0.07), make("bsp"), 4)) == pytest.approx(0.28)


@given(st.floats(0.001, 10), st.integers(1, 50), st.sampled_from(["bsp", "asp"]))
def test_the_root_of_the_workers_whatever_an_update_has(lr, workers, name):
    update = Update(lr=lr, lr_scaling="inverse-root")
    assert printed(rate_in_force(update, make(name), workers)) == approx(lr / sqrt(workers))
    assert approx(printed(rate_in_force(update, VARYING, workers))) == lr / sqrt(workers)


def test_the_schedule_is_named():
    update = Update(schedule={"name": "cosine", "warmup": 0.25})
    text = rate_in_force(update, make("bsp"), 4)
    assert "cosine" in text
    assert printed(text) == 0.25


@pytest.mark.parametrize("trains", [True, False])
def test_a_run_says_its_rate(tmp_path, trains):
    told = []
    timing = {} if trains else {"timing": "only"}
    raysync.run(SETTINGS | {"output": str(tmp_path)} | timing, notify=told.append)
    assert any("lr" in each and "0.15" in each for each in told) == trains


@pytest.mark.parametrize(
    ("paradigm", "steps"), [("bsp", 4), ({"name": "local", "paradigm": "bsp", "steps": 6}, 6)]
)
def test_the_local_steps_that_are_said_are_those_that_are_made(paradigm, steps):
    """A paradigm of local steps has its own number, whatever the block `local` says."""
    local = {"local": {"lr": 0.1, "steps": 4}, "update": {}}
    training = prepare(config.validate(SETTINGS | local | {"paradigm": paradigm}))
    choice = training.experiment.paradigm
    assert re.match(rf"local: {steps} steps", training.rate_in_force(choice))
    lines, _ = learn(training, choice)
    batch = training.experiment.batch_size
    pushed = [entry.event.samples for entry in entries(lines, Pushed)]
    assert max(pushed) == steps * batch
