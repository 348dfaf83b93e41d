"""A loss that torch compiles: the gradients of the eager one, compiled once, or refused by name."""

import shutil
from functools import partial

import pytest
import torch
from torch import nn

from raysync import config
from raysync.config import ParadigmChoice, WorkerGroup
from raysync.decoupled.plan import check_training
from raysync.errors import ConfigError
from raysync.training.preparation import prepare
from raysync.training.worker import compiling
from raysync.training.worker.compiling import refuse_without_compiler
from raysync.training.worker.gradient import GradientComputation
from tests.builders.messages import naming

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
SETTINGS = {"data": {"name": "digits", "train_samples": 100}, "workers": [{"name": "w"}]}
BY_A_COMPILER = pytest.param(
    "inductor",
    "float32",
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler"),
    ],
)
"""The fast ones take torch's own kernels for what was traced."""


def normed():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10)
    )


def task(**settings):
    return prepare(config.validate(SETTINGS | settings), model=normed)


def computed(training, clocks=2, batch_size=12, micro_batch=None, **group):
    computation = GradientComputation(
        training.build(), training.task, group=WorkerGroup(**group), micro_batch=micro_batch
    )
    reader = training.reader("w-0")
    losses = [computation.compute(reader, clock, batch_size) for clock in range(clocks)]
    return losses, computation.outgoing().clone()


@pytest.mark.parametrize(("backend", "precision"), [("aot_eager", "bf16"), BY_A_COMPILER])
def test_a_compiled_loss_has_the_gradients_of_the_eager_one(monkeypatch, backend, precision):
    """And the buffers of batch norm, and micro-batches."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    training, options = task(), {"precision": precision, "micro_batch": 6}
    losses, vector = computed(training, **options)
    other_losses, other = computed(training, compile=True, **options)
    tolerance = 1e-5 if precision == "float32" else 2e-2
    assert other_losses == pytest.approx(losses, rel=tolerance)
    assert (other - vector).norm() < tolerance * vector.norm()


def test_what_was_compiled_in_the_warm_up_serves_the_run(monkeypatch):
    """Another module with the same code, and another batch size, which is compiled for once."""
    graphs, compiled_for = [], []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch.compiler.reset()
    training = task()
    for batch_size in (12, 12, 10, 8, 6):
        computed(training, batch_size=batch_size, compile=True)
        compiled_for.append(len(graphs))
    assert compiled_for == [1, 1, 2, 2, 2]
    torch.compiler.reset()


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(compiling, "TRIED", set())


@pytest.mark.filterwarnings("ignore:dynamo_pgo force disabled")
def test_a_machine_without_a_compiler_is_refused_by_its_name(monkeypatch, fresh):
    from torch._inductor import config as inductor

    monkeypatch.setattr(inductor.cpp, "cxx", ("no-such-compiler",))
    monkeypatch.setattr(inductor, "force_disable_caches", True)
    torch.compiler.reset()
    with pytest.raises(ConfigError, match=naming("compile: true: here: no-such-compiler")):
        refuse_without_compiler("cpu")
    torch.compiler.reset()
    assert not compiling.TRIED


def test_a_process_tries_its_compiler_once(monkeypatch, fresh):
    calls = []

    def compile(function):
        calls.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    for _ in range(2):
        refuse_without_compiler("cpu")
    assert len(calls) == 1


COMPILED = [{"name": "w", "compile": True}]


@pytest.mark.parametrize(
    ("choice", "settings", "where"),
    [
        ("decoupled", {}, "decoupled: workers: w: compile: true:"),
        ("asp", {"engine": "virtual"}, "asp: workers: w: compile: true:"),
    ],
)
def test_what_cannot_hold_it_refuses_it_by_name(choice, settings, where):
    training = task(workers=COMPILED, **settings)
    parameters = {"modules": 1} if choice == "decoupled" else {}
    paradigm = training.experiment.make(ParadigmChoice(name=choice, **parameters))
    with pytest.raises(ConfigError, match=naming(where)):
        check_training(training, paradigm)


def test_a_virtual_run_that_only_takes_time_takes_it():
    settings = {"engine": "virtual", "timing": "only"}
    training = task(workers=[COMPILED[0] | {"step_s": 1}], **settings)
    check_training(training, training.experiment.make(ParadigmChoice(name="asp")))


def test_several_devices_refuse_it():
    with pytest.raises(ConfigError, match=naming("compile: 2")):
        config.validate({"workers": [{"compile": True, "devices_per_worker": 2}]})
