"""Calls around a checkpoint take no time, not even over links, and servers take states."""

import gc

import pytest
import torch
from torch import nn

from raysync import config
from raysync.engine.messages import RestoreCall, SnapshotCall, StatisticsCall, StepCall
from raysync.engine.topology import SERVER
from raysync.paradigms import make
from raysync.training.preparation import prepare
from raysync.virtual.engine import driver_of
from tests.builders.virtual import DATA, deep, weights_of


def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def task(wire="float32"):
    settings = {
        "engine": "virtual",
        "batch_size": 4,
        "workers": [{"name": "w", "count": 3, "step_s": 0.1, "jitter": {"sigma": 0.3}}],
        "workload": {"samples": 120},
        "update": {"momentum": 0.5, "delay_compensation": "adaptive"},
        "network": {"update_s": 0.01, "server_bandwidth_bytes_per_s": 2000},
        "evaluation": {"marks": 2},
        "cluster": {"wire": wire},
    }
    return prepare(config.validate(settings), normed, DATA)


def run(driver, meddle=lambda: None):
    """The lines of a run, with calls between its events."""
    driver.start()
    while driver.is_running:
        lines = len(driver.lines)
        driver.backend.wait()
        if len(driver.lines) > lines:
            meddle()
    return driver.lines


@pytest.mark.parametrize(
    ("paradigm", "parameters", "wire"),
    [
        ("bsp", {}, "float32"),
        ("asp", {}, "float32"),
        ("bsp", {"exchange": "ring"}, "float32"),
        ("bsp", {}, "bf16"),
    ],
    ids=["bsp", "asp", "bsp by all-reduce", "bsp with bf16 on the wire"],
)
def test_calls_around_a_checkpoint_change_nothing(paradigm, parameters, wire):
    plain, driver = (driver_of(task(wire), make(paradigm, **parameters)) for _ in range(2))
    steps, call = {}, driver.backend.call

    def noted(actor, message, inputs=()):
        called = call(actor, message, inputs)
        if isinstance(message, StepCall):
            steps[actor] = called
        return called

    def meddle():
        pushed = {worker: steps[worker] for worker, _ in driver.topology.roster.buffered}
        snapshot = SnapshotCall([*pushed], driver.topology.server.version)
        call(SERVER, snapshot, [*pushed.values()])
        for worker, gradient in pushed.items():
            call(SERVER, StatisticsCall(worker))
            call(worker, RestoreCall(), [gradient])

    driver.backend.call = noted

    assert run(plain) == run(driver, meddle)
    assert torch.equal(weights_of(plain), weights_of(driver))


KEEPING = {
    "bsp": ("bsp", {}, {}),
    "asp": ("asp", {}, {}),
    "ssp": ("ssp", {"staleness": 1}, {"link": {"latency_s": 0.02}}),
    "ring": ("bsp", {"exchange": "ring"}, {}),
    "k-sync": ("k-sync", {"k": 2}, {}),
    "ringmaster": ("ringmaster", {"staleness": 0}, {}),
    "decoupled": ("decoupled", {"modules": 2, "groups": 2}, {}),
}


@pytest.fixture
def no_collections():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("label", KEEPING)
def test_checkpoints_do_not_grow(label):
    """What a run has done with is freed without a search for garbage, so none of it is saved."""
    name, parameters, worker = KEEPING[label]
    groups = [
        {"name": "quick", "count": 2, "step_s": 0.1, **worker},
        {"name": "slow", "count": 2, "step_s": 0.17, **worker},
    ]
    settings = {
        "engine": "virtual",
        "batch_size": 4,
        "workers": groups,
        "workload": {"samples": 480},
        "network": {"push_s": 0.001},
        "evaluation": {"marks": 1},
    }
    model = deep if name == "decoupled" else normed
    driver = driver_of(prepare(config.validate(settings), model, DATA), make(name, **parameters))
    kept = []
    run(driver, lambda: kept.append(len(driver.backend.state()["calls"])))
    half = len(kept) // 2
    assert max(kept[half:]) < 1.5 * max(kept[:half])
    assert half > 50
