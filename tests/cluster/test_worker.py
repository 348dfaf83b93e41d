"""The worker's actor, without Ray."""

import numpy as np
import pytest
import torch
from torch import nn

from raysync.cluster.actors import worker_actor as worker_module
from raysync.cluster.actors.worker_actor import Worker
from raysync.cluster.transports.payloads import incoming, outgoing
from raysync.cluster.transports.shared.segments import Mappings
from raysync.cluster.transports.shared.shared_memory import slots_of
from raysync.engine.messages import RestoreCall, StepCall
from raysync.step_fault import StepFault
from raysync.training.data.batches import Batches
from raysync.training.optim.flat_optimizer import FlatOptimizer
from raysync.training.vectors.wire import Wire
from tests.builders.actors import begun
from tests.builders.tasks import Cut
from tests.fakes.clock import FakeClock

DIGITS = {"data": {"name": "digits", "train_samples": 100}, "batch_size": 8}


def weights_for(training):
    return torch.zeros(training.vector_bytes // 4)


FAULT = StepFault(3.0, 0.25)


@pytest.mark.parametrize("computing_s", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("pulls", [True, False])
@pytest.mark.parametrize(
    ("step", "device_s"),
    [(StepCall(7, 8), 0.5), (StepCall(7, 8, FAULT), 1.5), (StepCall(7, 2), 0.125)],
)
def test_a_worker_is_busy_as_long_as_it_computes_or_its_device_would_and_not_while_it_waits(
    monkeypatch, step, device_s, pulls, computing_s
):
    """It waits for its weights before it computes."""
    clock, began = FakeClock(monkeypatch), []

    class Slow(nn.Linear):
        def forward(self, x):
            began.append(clock.now)
            clock.sleep(computing_s)
            return super().forward(x)

    link = {"latency_s": 0.1, "bandwidth_bytes_per_s": 2000}
    settings = DIGITS | {"workers": [{"name": "w", "step_s": 0.5, "link": link}]}
    model = nn.Sequential(nn.Flatten(), Slow(64, 10))
    worker, training = begun(monkeypatch, Worker, settings, model=model)
    clock.now, began[:] = 0.0, []
    way_s = (0.1 + training.vector_bytes / 2000 + step.fault.latency_s) if pulls else 0.0
    _, report = worker.execute(step, outgoing(weights_for(training)) if pulls else ())
    assert began == [pytest.approx(way_s)]
    assert report.busy_s == pytest.approx(max(device_s, computing_s))
    assert clock.now == pytest.approx(way_s + report.busy_s)
    assert torch.backends.cudnn.benchmark == (step.samples == 8), "only where the worker is warm"


def test_a_worker_computes_as_its_group_and_the_cluster_say(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda loss: compiled.append(loss) or loss)
    settings = DIGITS | {"workers": [{"name": "w", "compile": True}]}
    settings["cluster"] = {"server_shards": 3, "wire": "bf16"}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    worker, training = begun(monkeypatch, Worker, settings, model=model)
    parts, _ = worker.execute(StepCall(0, 8), outgoing(weights_for(training)))
    assert training.task.loss in compiled
    assert [len(part) for part in parts] == [4 * size for size in Wire("bf16", 650, 0, 3).sizes]


def test_a_worker_with_local_steps_is_warm_for_its_optimizer(monkeypatch):
    """The first one of a process imports for seconds."""
    monkeypatch.setattr(worker_module, "warm_up", lambda key, make: make()(0))
    stepped = []
    monkeypatch.setattr(FlatOptimizer, "step", lambda self, *_: stepped.append(self.kind))
    settings = DIGITS | {"workers": [{}], "local": {"optimizer": "adamw", "lr": 0.1}}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    begun(monkeypatch, Worker, settings | {"paradigm": "bsp"}, model=model)
    assert stepped == ["AdamW"]


class Keeping(nn.Linear):
    """It has buffers that it leaves as they are."""

    def __init__(self):
        super().__init__(64, 10)
        self.register_buffer("kept", torch.zeros(5))

    def forward(self, x):
        return super().forward(x.flatten(1))


@pytest.mark.parametrize("sizes", [[655], [3, 4, 648], [651, 1, 3]])
def test_a_worker_takes_its_buffers_from_the_end_of_a_vector_in_parts(monkeypatch, sizes):
    worker, _ = begun(monkeypatch, Worker, DIGITS, model=Keeping())
    vector = torch.arange(655.0)
    assert worker.execute(RestoreCall(), outgoing(vector, sizes)) == ([], None)
    [push] = incoming(*worker.execute(StepCall(0, 8), ())[0])
    assert torch.equal(push[650:], vector[650:])


class Twice:
    """Two steps, one after the other."""

    def run(self, actor, meanwhile):
        for clock in range(2):
            actor.execute(StepCall(clock, 8), ())
            meanwhile()


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_worker_draws_ahead_what_is_in_memory(monkeypatch, one_by_one):
    """Samples that are read one by one may take long: that must show in the step's seconds."""
    given = {"task": Cut()} if one_by_one else {"model": Keeping()}
    worker, _ = begun(monkeypatch, Worker, DIGITS, **given)
    drawn = []
    monkeypatch.setattr(
        Batches, "indices", lambda self, clock, size: drawn.append(clock) or np.arange(size)
    )
    worker.serve(Twice())
    assert drawn == ([0, 1] if one_by_one else [0, 1, 2])


@pytest.mark.parametrize("wire", ["float32", "bf16"])
def test_a_gradient_in_shared_memory_is_the_one_that_would_be_returned(monkeypatch, wire):
    """Buffers included, in parts, and written into two slots by turns."""
    settings = DIGITS | {"cluster": {"server_shards": 2, "wire": wire}}
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    gradients, mappings = [], Mappings()
    for shares in (False, True):
        worker, training = begun(monkeypatch, Worker, settings, model=model)
        slots = slots_of(training.push_bytes)
        leases = [slots.lease(), slots.lease()]
        gradients.append([])
        for clock in range(3):
            into = leases[clock % 2].handle if shares else None
            parts, _ = worker.execute(StepCall(clock, 8), (), into)
            assert len(parts) == 2
            gradients[-1] += [bytes(mappings.read(part) if shares else part) for part in parts]
    assert gradients[0] == gradients[1]
    assert sum(map(len, gradients[0])) == 3 * training.push_bytes
