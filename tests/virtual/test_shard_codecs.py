"""Servers in shards, in virtual time: what codecs make of a push is what they make of it on Ray."""

import pytest
import torch

from raysync import config
from raysync.paradigms import make
from raysync.training.preparation import prepare
from raysync.training.server.parameter_store import shard_of
from raysync.training.vectors.flat import FlatModel
from raysync.training.worker.computation import WorkerComputation
from raysync.training.worker.gradient import GradientComputation
from raysync.virtual.engine import driver_of
from tests.builders.updates import update_plan
from tests.builders.virtual import DATA, deep, weights_of

BATCH_SIZE, STEPS = 4, 12
WIRES = ["float32", "bf16", "int8", {"name": "top-k", "fraction": 0.1}]


def settings(wire, shards):
    return {
        "engine": "virtual",
        "batch_size": BATCH_SIZE,
        "workers": [{"count": 1, "step_s": 0.1}],
        "workload": {"samples": BATCH_SIZE * STEPS},
        "update": {"lr": 0.1, "momentum": 0.5},
        "cluster": {"wire": wire, "server_shards": shards},
    }


def gradient_of(training):
    """What the only worker computes."""
    experiment = training.experiment
    [group], wire = training.groups.values(), experiment.cluster.wire
    return GradientComputation(
        module=training.build(),
        task=training.task,
        devices=["cpu"],
        group=group,
        wire=wire.name,
        fraction=wire.fraction,
        shards=experiment.cluster.server_shards,
    )


def by_parts(training):
    """The weights after the steps of a worker that sends each shard its part, as on Ray."""
    experiment, gradient = training.experiment, gradient_of(training)
    [slot], wire = training.groups, experiment.cluster.wire
    shards = experiment.cluster.server_shards
    worker, reader = WorkerComputation(gradient, experiment), training.reader(slot)
    model = FlatModel(training.build())
    stores = [shard_of(model, experiment.update, n, shards, wire.name) for n in range(shards)]
    for clock in range(STEPS):
        gradient.read_weights([store.publish() for store in stores])
        worker.compute(reader, clock, 1, BATCH_SIZE, clock / STEPS)
        parts = torch.split(gradient.outgoing(), gradient.wire.sizes)
        for store, part in zip(stores, parts, strict=True):
            store.apply(update_plan([BATCH_SIZE], progress=clock / STEPS), [part])
    return torch.cat([store.publish() for store in stores])


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_codecs_see_the_parts_that_shards_get(wire, shards):
    training = prepare(config.validate(settings(wire, shards)), deep, DATA)
    driver = driver_of(training, make("asp"))
    assert list(driver.run())
    assert torch.equal(weights_of(driver), by_parts(training))


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("wire", WIRES, ids=str)
def test_the_bytes_of_a_push_are_those_of_its_parts(wire, shards):
    training = prepare(config.validate(settings(wire, shards)), deep, DATA)
    sent = gradient_of(training).wire
    vector = torch.zeros(training.vector_bytes // 4)
    assert training.push_bytes == sent.encode(vector).nbytes
