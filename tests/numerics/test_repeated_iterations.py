"""An iteration that is asked for again, since its server was lost: what its first run has left in
the worker does not count.
"""

import pytest
import torch
from torch import nn

from raysync import config
from raysync.training.preparation import prepare
from raysync.training.worker.computation import WorkerComputation
from raysync.training.worker.gradient import GradientComputation
from tests.builders.virtual import DATA

STATES = {
    "buffers": {},
    "residual": {"cluster": {"wire": {"name": "top-k", "fraction": 0.3}}},
    "rounding": {"cluster": {"wire": "int8"}},
    "optimizer": {"local": {"optimizer": "adamw", "lr": 0.01, "steps": 3}},
}
"""What a worker keeps over its pushes -> the settings with which it does."""
BATCH_SIZE, STEPS = 4, 3


def normed():
    return nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4))


def pushes(kind, clocks):
    """What a worker pushes that has these clocks, one after the other."""
    settings = {"batch_size": BATCH_SIZE, "workers": [{"step_s": 1}]}
    training = prepare(config.validate(settings | STATES[kind]), normed, DATA)
    experiment, [slot] = training.experiment, training.groups
    wire = experiment.cluster.wire
    gradient = GradientComputation(
        module=training.build(),
        task=training.task,
        devices=["cpu"],
        group=training.groups[slot],
        wire=wire.name,
        fraction=wire.fraction,
    )
    pulled = torch.cat([gradient.model.weights, gradient.model.buffers()])
    worker = WorkerComputation(gradient, experiment, may_repeat=True)
    reader, pushed = training.reader(slot), []
    for clock in clocks:
        gradient.read_weights([pulled])
        worker.compute(reader, clock * STEPS, STEPS, BATCH_SIZE)
        pushed.append(gradient.outgoing().clone())
    return pushed


@pytest.mark.parametrize("kind", STATES)
def test_what_is_run_again_is_the_same_and_leaves_the_same(kind):
    again = pushes(kind, [0, 0, 1, 2, 2, 2, 3])
    once = pushes(kind, [0, 1, 2, 3])
    for number, clock in enumerate([0, 0, 1, 2, 2, 2, 3]):
        assert torch.equal(again[number], once[clock])
    assert not torch.equal(once[0], once[1])
