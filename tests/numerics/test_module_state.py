"""What modules change beside their gradients: as plain torch has it, or refused by name."""

from collections import deque
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import raysync
from raysync.errors import ConfigError, RunFailed
from tests.builders.messages import naming, tells
from tests.builders.plain_torch import (
    Rows,
    check_trained_as_alone,
    net,
    plan,
    recorded,
    rows,
    settings,
)

pytestmark = pytest.mark.usefixtures("one_thread")


class Teacher(nn.Module):
    """Evaluates with a mean of its student's weights, which each training pass moves."""

    def __init__(self):
        super().__init__()
        self.student = net()
        self.teacher = deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        if not self.training:
            return self.teacher(x)
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                old.mul_(0.8).add_(new, alpha=0.2)
        return self.student(x)


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(5, 6), nn.Linear(6, 2)

    def train(self, mode=True):
        super().train(mode)
        self.body.requires_grad_(False)
        return self

    def forward(self, x):
        return self.head(self.body(x).tanh())


class Memory(nn.Module):
    """Keeps a count, the last means in a list, and a buffer that does not travel."""

    def __init__(self):
        super().__init__()
        self.net, self.count, self.latest = net(), 0, deque(maxlen=2)
        self.register_buffer("moving", torch.zeros(5), persistent=False)

    def forward(self, x):
        if self.training:
            self.count += 1
            self.latest.append(float(x.mean()))
            self.moving = 0.5 * self.moving + x.detach().mean(0)
        return self.net(x + 0.1 * self.moving + sum(self.latest)) / (1 + self.count) ** 0.5


class Born(nn.Module):
    """Has attributes that come into being in its passes."""

    passes = 0

    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x):
        if self.training:
            self.passes += 1
            self.seen = [*getattr(self, "seen", ()), float(x.mean())]
            x = x + sum(self.seen) / self.passes
        return self.net(x)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.passes = nn.Linear(5, 2), 0

    def forward(self, x):
        if self.training:
            self.passes += 1
        return self.inner(x) / (1 + self.passes)


class Recurrent(nn.Module):
    """Keeps a hidden state over batches, with the graph of the pass that made it."""

    def __init__(self):
        super().__init__()
        self.cell, self.head, self.hidden = nn.Linear(7, 2), nn.Linear(2, 2), None

    def forward(self, x):
        hidden = x.new_zeros(2) if self.hidden is None else self.hidden.detach()
        state = self.cell(torch.cat([x, hidden.expand(len(x), 2)], 1)).tanh()
        if self.training:
            self.hidden = state[-1]
        return self.head(state)


def scripted():
    return nn.Sequential(torch.jit.script(Counting()))


@pytest.mark.parametrize("build", [Teacher, Frozen, Memory, Born, Recurrent, scripted, net])
@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.parametrize("workers", [1, 3])
def test_it_is_trained_as_in_plain_torch(build, workers):
    """What a module keeps beside its parameters belongs to its worker, also over a checkpoint."""
    check_trained_as_alone(Rows(build), workers, checkpoint={"every_progress": 0.5})


def test_a_teacher_travels_and_evaluates(tmp_path):
    record, module = recorded(Rows(Teacher), tmp_path)
    kept = record.state_dict()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(kept[name], value, rtol=0, atol=1e-6)
    x, y = rows(1, 32).tensors
    expected = cross_entropy(module.eval()(x), y).item()
    assert record.summary["final_loss"] == pytest.approx(expected, abs=1e-5)


class Clamped(nn.Linear):
    def forward(self, x):
        self.weight.data.clamp_(-0.01, 0.01)
        return super().forward(x)


class Growing(nn.Module):
    """Makes a layer, or unfreezes its body, in a later pass."""

    def __init__(self, layer_at=0, thaw_at=0, move_at=0):
        super().__init__()
        self.body, self.head = nn.Linear(5, 6).requires_grad_(False), nn.Linear(6, 2)
        self.at, self.passes = (layer_at, thaw_at, move_at), 0

    def forward(self, x):
        if self.training:
            self.passes += 1
        layer_at, thaw_at, move_at = self.at
        if self.passes == layer_at:
            self.late = nn.Linear(6, 6)
        if self.passes == thaw_at:
            self.body.requires_grad_(True)
        if self.passes == move_at:
            with torch.no_grad():
                self.body.bias.add_(1.0)
        hidden = self.body(x).tanh()
        return self.head(self.late(hidden) if hasattr(self, "late") else hidden)


class Hooked(nn.Linear):
    """Steps by itself, as an optimizer in a backward hook does."""

    def __init__(self):
        super().__init__(5, 2)
        self.weight.register_post_accumulate_grad_hook(self.step)

    @torch.no_grad()
    def step(self, parameter):
        parameter -= 0.1 * parameter.grad


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4, max_norm=0.5), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.words(x.abs().long() % 9).mean(1))


CENTRES = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (Rows(Words), "'words.weight'"),
        (Rows(lambda: Clamped(5, 2)), "'weight'"),
        (Rows(Hooked), "'weight'"),
        (Rows(lambda: Growing(layer_at=2)), "'late.weight'"),
        (Rows(lambda: Growing(thaw_at=2)), "'body.weight'"),
        (Rows(net, lambda model, batch: cross_entropy(CENTRES(model(batch[0])), batch[1])), "(2,"),
    ],
    ids=["max_norm", "clamped", "hooked", "late layer", "thawed", "loss"],
)
def test_what_cannot_be_carried_is_refused_before_the_run(task, name):
    with pytest.raises(ConfigError) as refused:
        plan(task)
    assert name in str(refused.value)


def test_weights_of_a_loss_are_named_by_their_place():
    task = Rows(net)
    task.centres = nn.Linear(2, 2)
    task.own_loss = lambda model, batch: cross_entropy(task.centres(model(batch[0])), batch[1])
    with pytest.raises(ConfigError, match=naming("centres.")):
        plan(task)
    task.centres.requires_grad_(False)
    assert plan(task)


@pytest.mark.parametrize(
    ("growing", "name"),
    [
        ({"layer_at": 4}, "'late.weight'"),
        ({"layer_at": 47}, "'late.weight'"),
        ({"thaw_at": 30}, "'body.weight' 30"),
        ({"move_at": 30}, "'body.bias' 30"),
    ],
    ids=str,
)
def test_what_begins_later_ends_the_run_with_its_name(growing, name, tmp_path):
    more = {"workload": {"iterations_per_worker": 60}, "output": str(tmp_path)}
    with pytest.raises(RunFailed) as failed:
        raysync.run(settings(**more), task=Rows(lambda: Growing(**growing)))
    assert tells(failed.value, name)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.places = nn.Embedding(9, 4), nn.Parameter(torch.zeros(5, 4))
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 4)
        self.output = nn.Linear(4, 9, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x):
        hidden = self.embedding(x.abs().long() % 9) + self.places
        return self.output(hidden + self.fc2(self.fc1(hidden).relu())).mean(1)


def test_muon_takes_hidden_layers_and_says_which():
    training = plan(Rows(Tied), update={"optimizer": "muon", "lr": 0.01, "momentum": 0.9})
    remarks = " ".join(training.remarks)
    assert tells(remarks, "muon: fc1.weight fc2.weight AdamW 4")


def test_what_is_moved_or_kept_by_a_worker_is_said():
    assert tells(" ".join(plan(Rows(Teacher)).remarks), "teacher.0.weight")
    assert tells(" ".join(plan(Rows(Memory)).remarks), "count")
    assert not any("Training steps" in text for text in plan(Rows(net)).remarks)


@pytest.mark.parametrize(("reduction", "is_said"), [("sum", True), ("mean", False)])
def test_a_loss_that_returns_sums_is_said(reduction, is_said):
    def loss(model, batch):
        return cross_entropy(model(batch[0]), batch[1], reduction=reduction)

    assert tells(" ".join(plan(Rows(net, loss)).remarks), "sum mean") == is_said


class Same(Rows):
    """Returns one object each time, and counts its losses."""

    def __init__(self):
        super().__init__(net)
        torch.manual_seed(3)
        self.only, self.losses = net(), 0

    def build_model(self):
        return self.only

    def loss(self, model, batch):
        self.losses += 1
        return super().loss(model, batch)


def test_the_trial_leaves_model_and_task_as_they_were():
    task = Same()
    before = deepcopy(task.only.state_dict())
    training = plan(task)
    assert all(torch.equal(value, before[name]) for name, value in task.only.state_dict().items())
    assert all(parameter.grad is None for parameter in task.only.parameters())
    assert (task.losses, training.model.found.of_task) == (0, ("losses",))
