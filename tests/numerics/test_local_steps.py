"""Local steps are those of torch's own optimizer on the module, and a push is what they changed."""

from math import cos, pi

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from raysync import config
from raysync.config import Local
from raysync.training.formats.state_file import decode, encode
from raysync.training.optim.muon import MuonWithAdamW
from raysync.training.preparation import prepare
from raysync.training.worker.computation import WorkerComputation
from raysync.training.worker.device import Device
from raysync.training.worker.gradient import GradientComputation
from raysync.training.worker.local_steps import LocalSteps
from tests.builders.virtual import DATA

pytestmark = pytest.mark.usefixtures("one_thread")

SIZE = 8
OPTIMIZERS = {
    "sgd": ({"lr": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1)),
    "nesterov": (
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "adamw": (
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
    ),
    "rmsprop": (
        {"optimizer": {"name": "RMSprop", "centered": True}, "lr": 0.01},
        lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    ),
    "muon": ({"optimizer": "muon", "lr": 0.02, "momentum": 0.9}, lambda p: muon(*p)),
}


def muon(hidden, *others):
    groups = [{"params": [hidden]}, {"params": others}]
    return MuonWithAdamW(groups, lr=0.02, momentum=0.9, nesterov=False)


def net():
    # A bias before batch norm has no gradient but rounding errors, which AdamW would make large.
    layers = nn.Linear(3, 6, bias=False), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4)
    return nn.Sequential(*layers)


def task(model=net, **settings):
    experiment = config.validate({"engine": "virtual", "batch_size": SIZE} | settings)
    return prepare(experiment, model, DATA)


def steps_of(training, local, devices=1):
    computation = GradientComputation(training.build(), training.task, ["cpu"] * devices)
    return computation, LocalSteps(computation, Local(**local))


def batch(training, number):
    indices = training.batches("worker-0").indices(number, SIZE)
    data = training.data
    return data.samples(data.train_x[indices]), torch.from_numpy(data.train_y[indices])


SCHEDULES = [
    ("cosine", lambda number, progress: (1 + cos(pi * progress)) / 2),
    ("inverse-sqrt", lambda number, progress: (number + 1) ** -0.5),
    ({"name": "constant", "warmup": 0.2}, lambda number, progress: min(1, progress / 0.2)),
    (
        {"name": "milestones", "milestones": [0.25], "factor": 0.1},
        lambda number, progress: 0.1 if progress >= 0.25 else 1.0,
    ),
]
"""Each with the factor of a step's rate, by its number and progress."""


@pytest.mark.parametrize("keeps_state", [True, False])
@pytest.mark.parametrize(
    ("optimizer", "schedule", "factor"),
    [
        *((name, "constant", lambda number, progress: 1.0) for name in OPTIMIZERS),
        *(("sgd", *schedule) for schedule in SCHEDULES),
    ],
)
def test_iterations_are_those_of_a_plain_loop(optimizer, schedule, factor, keeps_state):
    """A schedule follows each step, over pushes, also where the optimizer's state starts anew."""
    training = task()
    local, make = OPTIMIZERS[optimizer]
    computation, steps = steps_of(
        training, local | {"keeps_state": keeps_state, "schedule": schedule}
    )
    module, reader = training.build(), training.reader("worker-0")
    own = make(module.parameters())
    flat = nn.utils.parameters_to_vector
    pulled, number = flat(module.parameters()).detach().clone(), 0
    for count in (3, 1, 4):
        buffers = computation.model.buffers()
        computation.read_weights([torch.cat([pulled, buffers])])
        nn.utils.vector_to_parameters(pulled.clone(), module.parameters())
        loss = steps.compute(reader, number, count, SIZE, 0.05 * number, 0.05)
        own = own if keeps_state else make(module.parameters())
        losses = []
        for each in range(number, number + count):
            x, y = batch(training, each)
            own.zero_grad()
            plain = cross_entropy(module(x), y)
            plain.backward()
            for group in own.param_groups:
                group["lr"] = local["lr"] * factor(each, 0.05 * each)
            own.step()
            losses.append(plain.item())
        assert loss == pytest.approx(sum(losses) / count, rel=1e-5)
        changed = flat(module.parameters()).detach()
        torch.testing.assert_close(steps.weights, changed, rtol=1e-5, atol=1e-6)
        delta = computation.outgoing()[: len(pulled)]
        assert torch.equal(delta, pulled - steps.weights)
        torch.testing.assert_close(
            computation.outgoing()[len(pulled) :][:6], module[1].running_mean, rtol=1e-5, atol=1e-6
        )
        pulled = pulled - 0.7 * delta  # weights of the server, which are not those of the worker
        number += count


def test_two_devices_step_as_one():
    """Without batch norm, which they do by themselves."""
    training, results = task(nn.Linear(3, 4)), []
    for devices in (1, 2):
        computation, steps = steps_of(training, {"lr": 0.1, "momentum": 0.9}, devices)
        steps.compute(training.reader("worker-0"), 0, 5, SIZE, 0.0)
        results.append(computation.outgoing().clone())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


def test_each_steps_gradient_is_clipped():
    """So one step of SGD moves the weights by lr x clip_norm, however large the gradient."""
    training = task()
    computation, steps = steps_of(training, {"lr": 0.5, "clip_norm": 0.01})
    steps.compute(training.reader("worker-0"), 0, 1, SIZE, 0.0)
    assert computation.model.gradient.norm().item() == pytest.approx(0.005, rel=1e-3)


@pytest.mark.parametrize("wire", ["float32", "top-k"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_another_process_goes_on_from_a_workers_state(optimizer, wire):
    """Also while the next iteration is under way, whose batch the state is asked for by."""
    training = task(
        local=OPTIMIZERS[optimizer][0], checkpoint={"every_s": 1}, cluster={"wire": wire}
    )

    def worker():
        module, task = training.build(), training.task
        gradient = GradientComputation(module, task, wire=wire, fraction=0.1)
        return gradient, WorkerComputation(gradient, training.experiment)

    reader, (computation, steps) = training.reader("worker-0"), worker()
    weights = computation.model.initial()
    steps.compute(reader, 0, 3, SIZE, 0.0)
    computation.outgoing()
    before = [encode(steps.state_before(3))]
    again, others = worker()
    computation.read_weights([weights])
    computation.read_buffers(weights)
    steps.compute(reader, 3, 2, SIZE, 0.0)
    before.append(encode(steps.state_before(3)))
    expected = computation.outgoing().clone()
    for data in before:
        others.load_state(decode(data))
        again.read_weights([weights])
        again.read_buffers(weights)
        others.compute(reader, 3, 2, SIZE, 0.0)
        assert torch.equal(again.outgoing(), expected)
    has_state = optimizer != "sgd" or wire != "float32"  # plain SGD has none
    assert (encode(steps.state()) != encode(steps.state_before(3))) == has_state


@pytest.mark.parametrize("steps", [1, 50])
def test_what_is_not_finite_is_found_with_the_push(steps):
    """Also if the last step alone makes it so: no gradient has shown it then."""
    training, overflows = task(), {"match": ["*"], "lr_factor": 1e20}
    computation, local = steps_of(training, {"lr": 1e20, "groups": [overflows]})
    local.compute(training.reader("worker-0"), 0, steps, SIZE, 0.0)
    assert computation.not_finite is not None
    assert computation.not_finite.first == "weights"


class Steep(nn.Module):
    """For a batch with a 100 in it, its loss is finite, and the gradient of `root` is not."""

    def __init__(self):
        super().__init__()
        self.first, self.root = nn.Linear(3, 4), nn.Parameter(torch.zeros(()))

    def forward(self, x):
        out = self.first(x)
        return out + self.root.sqrt() if bool((x == 100).any()) else out


class Poisoned:
    """A reader whose batch of one number has a value in all but its first sample."""

    def __init__(self, reader, number, value):
        self._reader, self._number, self._value = reader, number, value
        self.seed, self.shares, self.samples = reader.seed, reader.shares, reader.samples

    def read(self, clock, sizes):
        batches = self._reader.read(clock, sizes)
        if clock == self._number:
            x, y = batches[0]
            x = x.clone()
            x[1:] = self._value
            batches = [(x, y)]
        return batches


@pytest.mark.parametrize("value", [float("nan"), 100.0], ids=["loss", "gradient"])
@pytest.mark.parametrize("poisoned", [None, 0, 2, 3], ids=["never", "first", "amid", "last"])
def test_a_gpu_whose_losses_are_read_a_step_later_pushes_and_finds_the_same(
    monkeypatch, poisoned, value
):
    """One that goes on with a step that is not finite forgets it again."""
    found, model = [], Steep()
    for is_gpu in (False, True):
        monkeypatch.setattr(Device, "is_gpu", is_gpu)
        training = task(model)
        computation, steps = steps_of(training, {"lr": 0.1, "momentum": 0.9})
        reader = Poisoned(training.reader("worker-0"), poisoned, value)
        loss = steps.compute(reader, 0, 4, SIZE)
        vector = computation.outgoing().clone()
        found.append((repr(loss), computation.not_finite, vector.tolist()))
    assert found[0] == found[1]
    assert (found[0][1] is None) == (poisoned is None)


class Strict(Steep):
    """It refuses weights that are not finite, as distributions of torch do."""

    def forward(self, x):
        if not bool(self.root.isfinite()):
            raise ValueError("a weight is not finite")
        return super().forward(x)


def test_an_error_that_comes_of_a_step_before_is_not_told_in_its_place(monkeypatch):
    monkeypatch.setattr(Device, "is_gpu", True)
    training = task(Strict())
    computation, steps = steps_of(training, {"lr": 0.1})
    steps.compute(Poisoned(training.reader("worker-0"), 2, 100.0), 0, 4, SIZE)
    assert (computation.not_finite.first, computation.not_finite.parameter) == ("gradient", "root")
    computation, steps = steps_of(training, {"lr": 0.1})
    computation.model.weights.fill_(float("nan"))
    with pytest.raises(ValueError, match="finite"):
        steps.compute(training.reader("worker-0"), 0, 4, SIZE)
