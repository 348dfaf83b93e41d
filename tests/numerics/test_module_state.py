"""What modules change beside their gradients: as plain torch has it, or refused by name."""

import random
from collections import deque
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils import prune
from torch.utils.data import TensorDataset

import raysync
from raysync import config
from raysync.errors import ConfigError, RunFailed
from raysync.training.preparation import prepare
from tests.builders.messages import naming, tells
from tests.builders.virtual import learn, weights_of

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH, ROUNDS, RATE = 8, 6, 0.2


def rows(seed, count=64):
    x = torch.randn(count, 5, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x.sum(1) > 0).long())


class Rows(raysync.Task):
    """Rows in two classes, for a model that the test gives."""

    def __init__(self, build, loss=None, metrics=None):
        self.build, self.own_loss, self.own_metrics = build, loss, metrics

    def build_model(self):
        return self.build()

    def train_set(self):
        return rows(0)

    def test_set(self):
        return rows(1, 32)

    def loss(self, model, batch):
        if self.own_loss is not None:
            return self.own_loss(model, batch)
        return cross_entropy(model(batch[0]), batch[1])

    def metrics(self, model, batch):
        return {} if self.own_metrics is None else self.own_metrics(model, batch)


def settings(count=1, **more):
    return {
        "engine": "virtual",
        "batch_size": BATCH,
        "workers": [{"name": f"w{n}", "step_s": 1 + n / 10} for n in range(count)],
        "update": {"lr": RATE, "lr_scaling": "none"},
        "workload": {"iterations_per_worker": ROUNDS},
        "evaluation": {"marks": 2},
    } | more


def plan(task, count=1, **more):
    return prepare(config.validate(settings(count, **more)), task=task)


def net():
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


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


def scripted():
    return nn.Sequential(torch.jit.script(Counting()))


def trained_alone(task, plan, workers=1):
    """Plain torch: a module a worker, BSP by hand; the first worker's module."""
    slots = list(plan.shards)
    modules = [plan.build() for _ in slots]
    readers = [plan.reader(slot) for slot in slots]
    for clock in range(ROUNDS):
        gradients = []
        for module, reader in zip(modules, readers, strict=True):
            module.zero_grad()
            [batch] = reader.read(clock, [BATCH])
            task.loss(module, batch).backward()
            trained = [p for p in module.parameters() if p.requires_grad]
            gradients.append([torch.zeros_like(p) if p.grad is None else p.grad for p in trained])
        means = [torch.stack(each).mean(0) for each in zip(*gradients, strict=True)]
        with torch.no_grad():
            for module in modules:
                trained = [p for p in module.parameters() if p.requires_grad]
                for parameter, gradient in zip(trained, means, strict=True):
                    parameter -= RATE * gradient
    return modules


def flat(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad])


@pytest.mark.parametrize("build", [Teacher, Frozen, Memory, Born, scripted, net])
@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.parametrize("workers", [1, 2])
def test_it_is_trained_as_in_plain_torch(build, workers):
    task = Rows(build)
    training = plan(task, workers)
    _, driver = learn(training)
    modules = trained_alone(task, training, workers)
    weights = weights_of(driver)[: training.parameters]
    torch.testing.assert_close(weights, flat(modules[0]), rtol=0, atol=1e-6)


def test_a_teacher_travels_and_evaluates(tmp_path):
    task = Rows(Teacher)
    record = raysync.run(settings(output=str(tmp_path)), task=task)
    [module] = trained_alone(task, plan(task))
    kept = record.state_dict()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(kept[name], value, rtol=0, atol=1e-6)
    x, y = rows(1, 32).tensors
    expected = cross_entropy(module.eval()(x), y).item()
    assert record.summary["final_loss"] == pytest.approx(expected, abs=1e-5)


def test_only_the_head_is_trained_where_train_freezes_the_body(tmp_path):
    training = plan(Rows(Frozen))
    assert training.parameters == 6 * 2 + 2
    record = raysync.run(settings(output=str(tmp_path)), task=Rows(Frozen))
    before, after = training.build(), record.state_dict()
    assert torch.equal(after["body.weight"], before.body.weight)
    assert not torch.equal(after["head.weight"], before.head.weight)


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


def mixed(model, batch):
    x, y = batch
    share, order = float(np.random.beta(0.4, 0.4)), torch.randperm(len(x))
    if random.random() < 0.5:
        order = order.flip(0)
    output = model(share * x + (1 - share) * x[order])
    return share * cross_entropy(output, y) + (1 - share) * cross_entropy(output, y[order])


def test_draws_of_all_generators_are_of_the_batch_alone(tmp_path):
    task = Rows(net, mixed)

    def final(**more):
        return weights_of(learn(plan(task, 2, **more))[1])

    first = final()
    np.random.seed(5)
    random.seed(5)
    assert torch.equal(final(), first)
    jitter = {"distribution": "lognormal", "sigma": 0.3}
    workers = [{"name": f"w{n}", "step_s": 2 - n, "jitter": jitter} for n in range(2)]
    assert torch.equal(final(workers=workers), first), "only the clock differs"
    before = np.random.get_state()[1].copy(), random.getstate()
    raysync.run(settings(2, output=str(tmp_path)), task=task)
    assert (np.random.get_state()[1] == before[0]).all()
    assert random.getstate() == before[1]


class Noisy(nn.Sequential):
    """Draws in evaluation, too."""

    def forward(self, x):
        return super().forward(x + torch.randn_like(x) + float(np.random.normal()))


def test_an_evaluation_has_draws_of_its_own(tmp_path):
    task = Rows(lambda: Noisy(*net()))
    losses = {}
    for name in ("bsp", "asp"):
        more = {"output": str(tmp_path), "paradigm": name}
        record = raysync.run(settings(2, **more), task=task)
        losses[name] = record.evaluations.loss[0]
    assert losses["bsp"] == losses["asp"], "at progress 0 the weights are equal"
    state = torch.get_rng_state()
    raysync.run(settings(output=str(tmp_path)), task=task)
    assert torch.equal(torch.get_rng_state(), state)


class Drawing(torch.utils.data.Dataset):
    def __init__(self, generator):
        self.generator = generator

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((5,), float(index)) + self.generator.normal(), index % 2


@pytest.mark.parametrize(
    ("generator", "is_said"),
    [(np.random.default_rng(0), True), (np.random, False)],
    ids=["its own", "the global one"],
)
def test_a_data_set_with_a_generator_of_its_own_is_said(generator, is_said):
    task = Rows(net)
    task.train_set = lambda: Drawing(generator)
    remarks = " ".join(plan(task).remarks)
    assert tells(remarks, "generator") == is_said


def slopes(model, batch):
    place = batch[0].clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(place).sum(), place, create_graph=True)
    return mse_loss(slope, torch.ones_like(slope))


@pytest.mark.parametrize("measured", [False, True], ids=["loss", "metrics"])
def test_a_loss_about_the_slope_by_the_input_is_trained_and_evaluated(measured, tmp_path):
    own = (lambda model, batch: {"loss": slopes(model, batch)}) if measured else None
    task = Rows(net, slopes, own)
    record = raysync.run(settings(output=str(tmp_path)), task=task)
    [module] = trained_alone(task, plan(task))
    expected = slopes(module.eval(), rows(1, 32).tensors).item()
    assert record.summary["final_loss"] == pytest.approx(expected, abs=1e-5)
    assert not any(p.grad is not None for p in record.model(net()).parameters())


class Optional(nn.Module):
    """A branch that is configured away: a weight of shape (0, 5)."""

    def __init__(self):
        super().__init__()
        self.extra, self.net = nn.Linear(5, 0), net()

    def forward(self, x):
        return self.net(torch.cat([x, self.extra(x)], 1))


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"cluster": {"server_shards": 3}},
        *({"cluster": {"wire": wire}} for wire in ("bf16", "int8", "top-k")),
        {"update": {"optimizer": "muon", "lr": 0.01, "momentum": 0.9}},
        {"local": {"steps": 2}},
    ],
    ids=str,
)
def test_parameters_without_elements_are_trained(more, tmp_path):
    record = raysync.run(settings(2, output=str(tmp_path), **more), task=Rows(Optional))
    assert record.summary["status"] == "finished"
    assert record.state_dict()["extra.weight"].shape == (0, 5)


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


@pytest.mark.parametrize("workers", [1, 3])
def test_a_hidden_state_belongs_to_its_worker(workers, tmp_path):
    task = Rows(Recurrent)
    training = plan(task, workers, checkpoint={"every_progress": 0.5})
    _, driver = learn(training)
    modules = trained_alone(task, training, workers)
    torch.testing.assert_close(weights_of(driver), flat(modules[0]), rtol=0, atol=1e-6)


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


# ---- further kinds that people have ----


def spectral():
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(5, 6)), nn.Linear(6, 2))


class SharedByEvaluation(nn.Module):
    """The copy that evaluates has the very parameters of the one that trains."""

    def __init__(self):
        super().__init__()
        self.trains = net()
        self.evaluates = net()
        for one, other in zip(self.evaluates, self.trains, strict=True):
            if isinstance(one, nn.Linear):
                one.weight, one.bias = other.weight, other.bias

    def forward(self, x):
        return self.trains(x) if self.training else self.evaluates(x)


class Depth(nn.Module):
    """Leaves blocks out at random, as stochastic depth does."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        for block in self.blocks:
            if not self.training or torch.rand(()) < 0.5:
                x = x + block(x).tanh()
        return self.head(x)


class Experts(nn.Module):
    """Most experts are not used in a batch, and have no gradient then."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(5, 2) for _ in range(6))

    def forward(self, x):
        return self.experts[int(x[0, 0].abs() * 100) % 6](x)


class Adversaries(nn.Module):
    def __init__(self):
        super().__init__()
        self.makes, self.judges = nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.judges(x)


def adversarial(model, batch):
    made = model.makes(torch.randn_like(batch[0]))
    fooled = cross_entropy(nn.functional.linear(made, model.judges.weight.detach()), batch[1])
    return cross_entropy(model(batch[0]), batch[1]) + fooled


def accumulated(model, batch):
    """Runs the backward pass of the first half by itself."""
    x, y = batch
    (cross_entropy(model(x[:4]), y[:4]) / 2).backward()
    return cross_entropy(model(x[4:]), y[4:]) / 2


class Quantised(nn.Module):
    """Rounds its weights in the forward pass, with a running range in buffers."""

    def __init__(self):
        super().__init__()
        self.net = net()
        self.register_buffer("largest", torch.ones(()))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        if self.training:
            self.steps += 1
            self.largest.lerp_(x.detach().abs().max(), 0.1)
        scale = self.largest / 127
        rounded = (x / scale).round() * scale
        return self.net(x + (rounded - x).detach())


@pytest.mark.parametrize(
    ("build", "loss"),
    [
        (spectral, None),
        (SharedByEvaluation, None),
        (Depth, None),
        (Experts, None),
        (Adversaries, adversarial),
        (net, accumulated),
        (Quantised, None),
    ],
    ids=["spectral norm", "shared", "depth", "experts", "adversaries", "accumulated", "quantised"],
)
def test_further_kinds_are_trained_as_in_plain_torch(build, loss):
    task = Rows(build, loss)
    training = plan(task)
    _, driver = learn(training)
    torch.manual_seed(0)
    slot = next(iter(training.shards))
    reader, module = training.reader(slot), training.build()
    for clock in range(ROUNDS):
        module.zero_grad()
        [batch] = reader.read(clock, [BATCH])
        torch.default_generator.manual_seed(reader.seed(clock))
        task.loss(module, batch).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter -= RATE * parameter.grad
    weights = weights_of(driver)[: training.parameters]
    torch.testing.assert_close(weights, flat(module), rtol=0, atol=1e-6)


# ---- what evaluations cache ----


class Folded(nn.Module):
    """Multiplies its layers once for evaluation, and drops that in `train`, or in training."""

    def __init__(self, place="attribute", drops="train"):
        super().__init__()
        self.a, self.b = nn.Linear(5, 5, bias=False), nn.Linear(5, 2)
        self.drops = drops
        if place == "buffer":
            self.register_buffer("kernel", None, persistent=False)
        else:
            self.kernel = None

    def train(self, mode=True):
        super().train(mode)
        if mode and self.drops == "train":
            self.kernel = None
        return self

    def forward(self, x):
        if self.training:
            self.kernel = None
            return self.b(self.a(x))
        if self.kernel is None:
            self.kernel = (self.b.weight @ self.a.weight).detach()
        return nn.functional.linear(x, self.kernel, self.b.bias)


class Merging(nn.Module):
    """Merges a low-rank change into its weight for evaluation, as LoRA does."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(5, 2)
        self.base.weight.requires_grad_(False)
        self.up, self.down = nn.Parameter(torch.ones(2, 1)), nn.Parameter(torch.ones(1, 5))
        self.is_merged = False

    def train(self, mode=True):
        super().train(mode)
        if mode == self.is_merged:
            with torch.no_grad():
                self.base.weight += (-1 if mode else 1) * self.up @ self.down
            self.is_merged = not mode
        return self

    def forward(self, x):
        output = self.base(x)
        return output if self.is_merged else output + x @ (self.up @ self.down).T


@pytest.mark.parametrize(
    "build",
    [
        Folded,
        lambda: Folded("buffer"),
        lambda: Folded(drops="in training"),
        lambda: Folded("buffer", "in training"),
        Merging,
    ],
    ids=["folded", "in a buffer", "lazily", "in a buffer, lazily", "merged"],
)
def test_what_an_evaluation_caches_is_of_its_own_weights(build, tmp_path):
    task = Rows(build)
    record = raysync.run(settings(output=str(tmp_path), evaluation={"marks": 3}), task=task)
    [module] = trained_alone(task, plan(task))
    x, y = rows(1, 32).tensors
    expected = cross_entropy(module.eval()(x), y).item()
    assert record.summary["final_loss"] == pytest.approx(expected, abs=1e-5)
    assert record.evaluations.loss.nunique() == len(record.evaluations)


def pruned():
    module = net()
    prune.random_unstructured(module[0], "weight", 0.4)
    return module


def test_a_pruned_module_is_trained_as_in_plain_torch():
    task = Rows(pruned)
    training = plan(task)
    _, driver = learn(training)
    [module] = trained_alone(task, training)
    weights = weights_of(driver)[: training.parameters]
    torch.testing.assert_close(weights, flat(module), rtol=0, atol=1e-6)


class Weighted(Rows):
    """Weighs its loss by the number of its training steps."""

    def __init__(self):
        super().__init__(net)
        self.steps = 0

    def loss(self, model, batch):
        self.steps += model.training
        return (1 + self.steps) * super().loss(model, batch)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_evaluation_has_the_initial_attributes_of_the_task(workers, tmp_path):
    record = raysync.run(settings(workers, output=str(tmp_path)), task=Weighted())
    x, y = rows(1, 32).tensors
    expected = cross_entropy(record.model(net()).eval()(x), y).item()
    assert record.summary["final_loss"] == pytest.approx(expected, abs=1e-5)
