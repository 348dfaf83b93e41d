"""Runs with local steps against plain loops in torch: DiLoCo, its asynchronous form, and SGD."""

import heapq
from dataclasses import dataclass, replace
from itertools import count

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.optimize import bisect
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import raysync
from raysync import config
from raysync.config import ParadigmChoice
from raysync.config.base import by_name
from raysync.core.decisions import Apply, Release
from raysync.core.events import Pushed
from raysync.core.journal import Ended, Remark
from raysync.decoupled.plan import check_training
from raysync.errors import ConfigError
from raysync.paradigms.asp import ASP
from raysync.predict.setting import Setting
from raysync.training.preparation import prepare
from raysync.training.worker.computation import WorkerComputation
from raysync.virtual.engine import driver_of
from tests.builders.messages import naming
from tests.builders.plans import BYTES
from tests.builders.virtual import (
    DATA,
    decided,
    entries,
    interrupted,
    learn,
    push_times,
    resumed,
    run,
    timed,
    weights_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")

SIZE = 8
INNER = {"optimizer": "adamw", "lr": 0.003, "weight_decay": 0.1}
OUTER = {"lr": 0.7, "momentum": 0.9, "nesterov": True}


def net():
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))


def with_batch_norm():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))


def task(pushes, steps, workers=(1.0,), model=net, **others):
    """Of so many pushes in all; the workers' seconds of a step."""
    return prepare(
        config.validate(
            {
                "engine": "virtual",
                "batch_size": SIZE,
                "workers": [{"name": f"w{i}", "step_s": s} for i, s in enumerate(workers)],
                "workload": {"samples": SIZE * steps * pushes},
                "update": OUTER,
                "local": {"steps": steps} | INNER,
                "evaluation": {"marks": 1},
            }
            | others
        ),
        model,
        DATA,
    )


class Worker:
    """A worker of a plain loop, with its own module, optimizer and batches."""

    def __init__(self, training, slot, make):
        self.training, self.slot = training, slot
        self.module, self.number = training.build(), 0
        self.optimizer = make(self.module.parameters())

    def delta(self, weights, steps, lr_of=None):
        """The change by some steps; `lr_of` gives the learning rate of each, counted from 0."""
        vector_to_parameters(weights.clone(), self.module.parameters())
        data = self.training.data
        for step in range(steps):
            if lr_of is not None:
                self.optimizer.param_groups[0]["lr"] = lr_of(step)
            indices = self.training.batches(self.slot).indices(self.number, SIZE)
            x = data.samples(data.train_x[indices])
            y = torch.from_numpy(data.train_y[indices])
            self.optimizer.zero_grad()
            cross_entropy(self.module(x), y).backward()
            self.optimizer.step()
            self.number += 1
        return weights - parameters_to_vector(self.module.parameters()).detach()


def plain(training, inner, outer):
    """The workers of a plain loop, the weights, and the outer optimizer."""
    workers = [Worker(training, slot, inner) for slot in training.groups]
    weights = nn.Parameter(parameters_to_vector(training.build().parameters()).detach())
    return workers, weights, outer([weights])


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.003, weight_decay=0.1, fused=True)


def nesterov(parameters):
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_bsp_is_diloco(workers):
    rounds, steps = 20, 5
    training = task(rounds * workers, steps, [1.0, 0.5, 2.0, 3.0][:workers])
    _, driver = learn(training)
    own, weights, outer = plain(training, adamw, nesterov)
    for _ in range(rounds):
        weights.grad = torch.stack([each.delta(weights.detach(), steps) for each in own]).mean(0)
        outer.step()
    torch.testing.assert_close(weights_of(driver), weights.detach(), rtol=1e-6, atol=1e-6)


def common_end(left, begins):
    """When workers end together that begin one by one and have so many steps to do."""

    def done(at):
        return sum(max(0.0, at - begin) / step_s for begin, step_s in begins)

    return bisect(lambda at: done(at) - left, min(begins)[0], 1e6, xtol=1e-9)


def test_asp_is_a_heap_of_workers():
    """Each applies its delta when it has made its steps, and begins on what it then finds; the last
    deltas have the steps with which all end together.
    """
    steps, seconds, pushes = 3, [1.0, 0.7, 2.3], 40
    training = task(pushes, steps, seconds, update={"lr": 0.3})
    lines, driver = learn(training, "asp")
    own, weights, outer = plain(training, adamw, lambda each: torch.optim.SGD(each, lr=0.3))
    order = count()
    heap = [
        (steps * s, next(order), i, steps, weights.detach().clone()) for i, s in enumerate(seconds)
    ]
    heapq.heapify(heap)
    left = steps * pushes
    while left > 0:
        now, _, index, made, pulled = heapq.heappop(heap)
        weights.grad = own[index].delta(pulled, made)
        outer.step()
        left -= made
        begun = sum(entry[3] for entry in heap)
        others = [(due, seconds[other]) for due, _, other, *_ in heap]
        end = common_end(max(0, left - begun), [(now, seconds[index]), *others])
        number = min(steps, max(1, int((end - now) / seconds[index] + 1e-6)))
        due = now + number * seconds[index]
        heapq.heappush(heap, (due, next(order), index, number, weights.detach().clone()))
    assert lines[-1].at == pytest.approx(now)
    torch.testing.assert_close(weights_of(driver), weights.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("steps", [1, 8, 32])
def test_a_warm_up_follows_each_step_and_the_last_rounds_are_shorter(number, steps):
    """Also a warm-up that is shorter than a round."""
    local = {"lr": 0.1, "steps": steps, "schedule": {"name": "constant", "warmup": 0.6}}
    training = task(1, 64 * number, [1.0, 0.5, 2.0, 3.0][:number], local=local)
    training = replace(training, workload_samples=training.workload_samples - 40 * number)
    _, driver = learn(training)
    own, weights, outer = plain(training, lambda each: torch.optim.SGD(each, lr=0.1), nesterov)
    work, applied = training.workload_samples, 0
    while applied < work:
        made = min(steps, max(1, (work - applied) // number // SIZE))
        rate = lambda step: 0.1 * min(1, (applied + step * SIZE * number) / work / 0.6)  # noqa: B023, E731
        deltas = [each.delta(weights.detach(), made, rate) for each in own]
        weights.grad = torch.stack(deltas).mean(0)
        outer.step()
        applied += made * SIZE * number
    torch.testing.assert_close(weights_of(driver), weights.detach(), rtol=1e-5, atol=1e-5)


class Slope(raysync.Task):
    """A weight of 1, whose gradient is always 2: the model of torchft's DiLoCo fixtures."""

    def build_model(self):
        module = nn.Linear(1, 1, bias=False)
        nn.init.ones_(module.weight)
        return module

    def train_set(self):
        return [torch.ones(1)] * 8

    def test_set(self):
        return self.train_set()

    def loss(self, model, batch):
        return 2 * model(batch).mean()

    def metrics(self, model, batch):
        return {"loss": self.loss(model, batch)}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_fragment_of_torchfts_fixture_comes_out(workers):
    """Of meta-pytorch/torchft, `test_diloco_mocked_updates` without delay and mixing: a fragment
    that is synchronised every 6 steps, with an inner lr of 1 and an outer one of 2.
    """
    for rounds, expected in enumerate([-23.0, -47.0], start=1):
        settings = {
            "engine": "virtual",
            "batch_size": 1,
            "workers": [{"count": workers, "step_s": 1}],
            "workload": {"samples": 6 * rounds * workers},
            "update": {"lr": 2.0},
            "local": {"steps": 6, "lr": 1.0},
        }
        _, driver = learn(prepare(config.validate(settings), task=Slope()))
        assert weights_of(driver).tolist() == [expected]


@pytest.mark.parametrize(("seconds", "atol"), [([1.0], 1e-7), ([1.0, 2.0], 1e-6)])
def test_one_step_with_an_outer_step_of_lr_1_is_plain_sgd(seconds, atol):
    """Of several workers, their weights are averaged in place of their gradients."""
    _, local = learn(task(40, 1, seconds, update={}, local={"steps": 1, "lr": 0.1}))
    update = {"lr": 0.1, "lr_scaling": "none"}
    _, plainly = learn(task(40, 1, seconds, local=None, update=update))
    torch.testing.assert_close(weights_of(local), weights_of(plainly), rtol=0, atol=atol)


def applied_samples(lines):
    samples = {(each.event.worker, each.event.clock): each.event for each in entries(lines, Pushed)}
    pushes = [push for _, apply in decided(lines, Apply) for push in apply.pushes]
    return sum(samples[push].samples for push in pushes)


def paced(seconds, samples, steps, **settings):
    """Workers of these seconds a step, which train nothing."""
    workers = [{"name": f"w{i}", "step_s": each} for i, each in enumerate(seconds)]
    local, workload = {"steps": steps}, {"samples": samples}
    return timed(**{"workers": workers, "local": local, "workload": workload} | settings)


WRAPPING = {"balanced": {"paradigm": "bsp"}, "ringmaster": {"paradigm": "ssp"}}


@pytest.mark.parametrize("paradigm", ["bsp", "asp", "ssp", "quorum", "lagtuner", *WRAPPING])
@settings(max_examples=15)
@given(
    workers=st.integers(1, 4),
    steps=st.sampled_from([1, 8, 32]),
    samples=st.integers(1, 600),
    size=st.integers(1, 8),
)
def test_however_many_steps_the_workload_is_met(paradigm, workers, steps, samples, size):
    """To within one step a worker, among equal workers."""
    training = paced([1] * workers, samples, steps, batch_size=size)
    half = {"k": (workers + 1) // 2} if paradigm == "quorum" else {}
    choice = by_name({"name": paradigm} | WRAPPING.get(paradigm, half))
    applied = applied_samples(run(training, ParadigmChoice.model_validate(choice)))
    assert samples <= applied < samples + workers * size


@settings(max_examples=20)
@given(
    seconds=st.lists(st.floats(0.1, 10), min_size=1, max_size=4),
    steps=st.sampled_from([1, 8, 32]),
    samples=st.integers(1, 600),
)
def test_unequal_workers_meet_the_workload_of_rounds(seconds, steps, samples):
    training = paced(seconds, samples, steps)
    applied = applied_samples(run(training))
    assert samples <= applied < samples + len(seconds)
    assert applied == applied_samples(run(replace(training, workload_samples=applied)))


@settings(max_examples=30)
@given(
    seconds=st.lists(st.floats(0.5, 4), min_size=2, max_size=4),
    steps=st.sampled_from([8, 32]),
    rounds=st.integers(20, 40),
    more=st.integers(0, 31),
)
def test_unequal_workers_without_a_barrier_end_together(seconds, steps, rounds, more):
    """No worker does many small pushes while another one is still at its last large one."""
    samples = rounds * steps * len(seconds) + more
    lines = run(paced(seconds, samples, steps), "asp")
    assert samples <= applied_samples(lines) <= samples + len(seconds)
    ideal_s = samples / sum(1 / each for each in seconds)
    assert ideal_s - max(seconds) <= lines[-1].at <= ideal_s + 2 * max(seconds)
    short = [push for push in entries(lines, Pushed) if push.event.steps < steps]
    assert len(short) <= 4 * len(seconds)


def pushes_of_one(steps, samples, **worker):
    """When a worker of a second a step pushes."""
    training = paced([1], samples, steps, workers=[{"step_s": 1} | worker])
    [times] = push_times(run(training)).values()
    return times


@pytest.mark.parametrize("steps", [1, 4])
def test_a_push_of_several_steps_takes_as_long_as_they_and_one_way(steps):
    times = pushes_of_one(steps, 3 * steps, link={"bandwidth_bytes_per_s": BYTES})
    assert times == pytest.approx([(steps + 2) * number for number in (1, 2, 3)])


def test_each_step_has_a_jitter_of_its_own():
    """So four steps of a push take as long as those of four pushes."""
    alone, together = (
        pushes_of_one(steps, 12, jitter={"distribution": "exponential"}) for steps in (1, 4)
    )
    assert alone[3::4] == pytest.approx(together)


@pytest.mark.parametrize("model", [net, with_batch_norm])
@pytest.mark.parametrize("keeps_state", [True, False])
@settings(max_examples=5)
@given(after=st.lists(st.integers(0, 60), min_size=1, max_size=2))
def test_bsp_goes_on_from_a_checkpoint_bit_for_bit(keeps_state, model, after):
    local = {"steps": 3, "keeps_state": keeps_state} | INNER
    training = task(30, 3, [1.0, 1.7], model, local=local, checkpoint={"every_progress": 0.5})
    choice = ParadigmChoice(name="bsp")
    _, driver = learn(training)
    checkpoint = None
    for events in after:
        _, following = interrupted(training, choice, events, checkpoint)
        checkpoint = following or checkpoint
    if checkpoint is None:
        return
    again = driver_of(training, choice.make(), checkpoint)
    lines = [line for lines in again.run() for line in lines]
    assert isinstance(lines[-1], Ended)
    assert torch.equal(weights_of(again), weights_of(driver))


@pytest.mark.parametrize("paradigm", ["bsp", "asp", "ssp"])
@settings(max_examples=25)
@given(after=st.integers(0, 30), seconds=st.sampled_from([1.0, 1.7, 4.0]))
def test_a_resumed_step_keeps_its_steps(paradigm, after, seconds):
    training = paced([1.0, 1.0, seconds], 150, 32, checkpoint={"every_s": 1e6})
    choice = ParadigmChoice(name=paradigm)
    before, checkpoint = interrupted(training, choice, after)
    if checkpoint is None:
        return
    planned = {
        worker: steps
        for worker, steps in checkpoint.state["topology"]["steps"].items()
        if worker in checkpoint.state["releases"]
    }
    after_it = resumed(training, choice, checkpoint)
    pushed = {}
    for line in entries(after_it, Pushed):
        pushed.setdefault(line.event.worker, line.event.steps)
    assert all(pushed.get(worker, steps) == steps for worker, steps in planned.items())
    assert planned.keys() == checkpoint.state["releases"].keys()
    assert applied_samples([*before, *after_it]) >= 150


def check_training_of(training):
    check_training(training, training.make(training.experiment.paradigm))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"local": {"steps": 0}}, "local.steps: 0"),
        ({"local": {"steps": 2, "nesterov": True}}, "local: nesterov"),
        ({"local": {"optimizer": "adamw", "momentum": 0.9}}, "local.momentum"),
        ({"local": {"optimizer": {"name": "sgd", "betas": [0.9, 0.9]}}}, "local.optimizer"),
        ({"local": {"optimizer": "adamm"}}, "local.optimizer: 'adamm' 'adam'"),
        ({"local": {"groups": [{"match": ["nothing"]}]}}, "local.groups[0].match: 'nothing'"),
        ({"update": {"delay_compensation": "constant"}}, "update.delay_compensation local"),
        ({"update": {"lr_scaling": "linear"}}, "update.lr_scaling local"),
        (
            {"paradigm": "sync-switch", "update": {"phases": {"asp": {"lr_scaling": "linear"}}}},
            "update.phases.asp.lr_scaling local",
        ),
        ({"paradigm": "k-batch-sync"}, "k-batch-sync local"),
        ({"paradigm": "decoupled"}, "decoupled local"),
    ],
)
def test_what_local_steps_cannot_mean_is_refused_by_name(changes, says):
    with pytest.raises(ConfigError, match=naming(says)):
        check_training_of(task(4, 2, [1.0, 1.0], **changes))


def test_a_paradigm_that_names_steps_needs_to_be_told_how_a_worker_steps():
    training = task(4, 1, local=None)
    lines, _ = learn(training, "tests.virtual.test_local_runs:Stepping")
    assert lines[-1].status == "failed"
    assert "local" in lines[-1].error


@dataclass
class Stepping(ASP):
    name = "stepping"

    def on_join(self, roster, worker):
        return [Release(worker, steps=3)]


def test_a_lost_workers_moments_are_lost_and_the_record_says_so():
    crash = {"kind": "crash", "worker": "w1-0", "at_s": 10, "rejoin_after_s": 3}
    for keeps_state in (True, False):
        local = {"steps": 2, "keeps_state": keeps_state} | INNER
        lines, _ = learn(task(40, 2, [1.0, 1.5], local=local, faults=[crash]), "asp")
        told = [line.text for line in lines if isinstance(line, Remark)]
        assert any("w1-0#2" in text and "optimizer" in text for text in told) == keeps_state


@pytest.mark.parametrize(
    ("local", "wire", "vectors"),
    [
        ({"optimizer": "adamw", "lr": 0.01}, "float32", 2),
        ({"lr": 0.01, "momentum": 0.9}, "int8", 2),
        ({"lr": 0.01}, "top-k", 1),
        ({"optimizer": "adamw", "lr": 0.01, "keeps_state": False}, "float32", 0),
    ],
)
def test_what_checkpoints_grow_by_is_said_before_the_run(local, wire, vectors):
    """Which is what a worker's state has."""
    settings = {"local": local, "cluster": {"wire": wire}, "checkpoint": {"every_s": 1}}
    training = task(4, 1, **settings, update={})
    _, driver = learn(training)
    state = driver.backend.processes.of_actor["w0-0#1"].actor.state()["worker"]
    tensors = [state["residual"], *state["local"].get("optimizer", {}).get("state", {}).values()]
    numbers = sum(
        value.numel()
        for each in tensors
        for value in (each.values() if isinstance(each, dict) else [each])
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )
    assert numbers == vectors * training.parameters
    said = [text for text in training.remarks if "checkpoint" in text]
    assert len(said) == (vectors > 0)
    assert all(f"{4 * numbers / 1e6:.3g} MB" in text for text in said)


@pytest.mark.parametrize("paradigm", ["bsp", {"name": "local", "paradigm": "bsp", "steps": 32}])
def test_what_a_change_brings_is_foreseen_with_local_steps(paradigm):
    """In as many pushes as a diagnosis takes, each of which is 32 batches."""
    steps = 32 if paradigm == "bsp" else 1
    training = paced([1, 1, 3], 3 * 32 * 40, steps)
    choice = ParadigmChoice.model_validate(by_name(paradigm))
    setting = Setting.of(training, choice)
    assert setting.pushes == 3 * 40
    assert setting.seconds() == pytest.approx(40 * 32 * 3)
    assert setting.shortened(12).seconds() == pytest.approx(4 * 32 * 3)


@pytest.mark.parametrize("optimizer", [{"name": "delayed-nesterov", "every": 2}, "mla"], ids=str)
def test_what_an_outer_optimizer_means_without_local_steps_is_said(optimizer):
    update = {"optimizer": optimizer, "momentum": 0.9, "lr": 0.1}
    for local, is_said in ((None, True), ({"lr": 0.1}, False)):
        remarks = task(4, 1, local=local, update=update).remarks
        name = optimizer if isinstance(optimizer, str) else optimizer["name"]
        assert any(name in text and "local" in text for text in remarks) == is_said


def test_the_first_round_counts_each_batch_at_its_size(monkeypatch):
    """Steps of 60 + 60 + 4 samples: so the rate inside rises by the same for all."""
    told = []
    compute = WorkerComputation.compute

    def spied(computation, reader, batch, steps, size, progress=0.0, of_step=0.0):
        told.append(of_step)
        return compute(computation, reader, batch, steps, size, progress, of_step)

    monkeypatch.setattr(WorkerComputation, "compute", spied)
    groups = [{"name": "a", "count": 2, "batch_size": 60}, {"name": "b", "batch_size": 4}]
    settings = {
        "engine": "virtual",
        "workers": [each | {"step_s": 1} for each in groups],
        "workload": {"samples": 1240},
        "local": {"steps": 2, "lr": 0.1},
    }
    learn(prepare(config.validate(settings), nn.Linear(3, 4), DATA))
    assert told == pytest.approx([124 / 1240] * len(told))
