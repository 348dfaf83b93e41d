"""Calls around a checkpoint take no time, not even over links, and servers take states."""

import gc
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from raysync import config
from raysync.core.checkpoint import Checkpoint
from raysync.engine.messages import (
    PublishCall,
    RestoreCall,
    SavedCall,
    SnapshotCall,
    StatisticsCall,
    StepCall,
)
from raysync.engine.topology import SERVER
from raysync.errors import ConfigError
from raysync.paradigms import make
from raysync.training.preparation import prepare
from raysync.training.server.apply_plan import MEAN
from raysync.virtual.engine import driver_of
from tests.builders.messages import naming
from tests.builders.virtual import DATA, cut_task, deep, weights_of


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


def server_from(training, paradigm, name, files):
    """A fresh process of a server that begins with the files of a checkpoint."""
    checkpoint = Checkpoint(1, 0.0, {}, {name: files})
    return driver_of(training, paradigm, checkpoint).backend.processes.start(name).actor


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
    snapshots, steps, call = [], {}, driver.backend.call

    def noted(actor, message, inputs=()):
        called = call(actor, message, inputs)
        if isinstance(message, StepCall):
            steps[actor] = called
        return called

    def meddle():
        pushed = {worker: steps[worker] for worker, _ in driver.topology.roster.buffered}
        snapshot = SnapshotCall([*pushed], driver.topology.server.version)
        snapshots.append((call(SERVER, snapshot, [*pushed.values()]), pushed))
        for worker, gradient in pushed.items():
            call(SERVER, StatisticsCall(worker))
            call(worker, RestoreCall(), [gradient])

    driver.backend.call = noted

    assert run(plain) == run(driver, meddle)
    assert torch.equal(weights_of(plain), weights_of(driver))
    taken = [each for each in snapshots if isinstance(each[0].answer, list)]
    again = server_from(task(wire), make(paradigm), SERVER, taken[-1][0].answer)
    publish = PublishCall(driver.topology.server.version, MEAN)
    assert torch.equal(again.compute(publish, [], None)[0][0], weights_of(driver))
    with_pushes = [each for each in taken if each[1]]
    assert bool(with_pushes) is (paradigm == "bsp")
    for snapshot, pushed in with_pushes[-1:]:
        again = server_from(task(wire), make(paradigm), SERVER, snapshot.answer)
        for worker, gradient in pushed.items():
            [vector], _ = again.compute(SavedCall(worker), [], None)
            assert torch.equal(vector, gradient.computed)


def test_stages_take_the_states_of_their_servers():
    training = cut_task(2, 2)
    paradigm = make("decoupled", modules=2, groups=2, mix="weight")
    driver = driver_of(training, paradigm)
    run(driver)
    for server in driver.topology.servers:
        actor = driver.backend.processes.of_actor[server.actor].actor
        _, files = actor.compute(SnapshotCall([], server.version), [], None)
        again = server_from(training, paradigm, server.actor, files)
        [weights], _ = again.compute(PublishCall(server.version, MEAN), [], None)
        assert torch.equal(weights, weights_of(driver, server.actor))


def test_the_state_of_two_shards_is_none_of_one_server():
    with pytest.raises(ConfigError, match=naming("server: 2 1")):
        server_from(task(), make("asp"), SERVER, [b"", b""])


KEEPING = {
    "bsp": ("bsp", {}, {}),
    "asp": ("asp", {}, {}),
    "ssp": ("ssp", {"staleness": 1}, {"link": {"latency_s": 0.02}}),
    "ring": ("bsp", {"exchange": "ring"}, {}),
    "k-sync": ("k-sync", {"k": 2}, {}),
    "ringmaster": ("ringmaster", {"staleness": 0}, {}),
    "decoupled": ("decoupled", {"modules": 2, "groups": 2}, {}),
}


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
    with without_collections():
        run(driver, lambda: kept.append(len(driver.backend.state()["calls"])))
    half = len(kept) // 2
    assert max(kept[half:]) < 1.5 * max(kept[:half])
    assert half > 50


@contextmanager
def without_collections():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
