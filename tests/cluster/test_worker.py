"""The worker actor, without Ray."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from raysync import config
from raysync.cluster.actor_errors import ActorError
from raysync.cluster.actors import worker as worker_module
from raysync.cluster.actors.actor_spec import Role
from raysync.cluster.actors.threads import Threads
from raysync.cluster.actors.worker import Worker
from raysync.cluster.layout import spec_of
from raysync.cluster.transports.payloads import PulledWeights, outgoing
from raysync.cluster.transports.shared.segments import Mappings
from raysync.cluster.transports.shared.shared_memory import slots_of
from raysync.emulation.step_time import StepTime
from raysync.engine.messages import RestoreCall, StepCall
from raysync.paradigms import make
from raysync.step_fault import StepFault
from raysync.training.data.batch_reader import BatchReader
from raysync.training.preparation import prepare
from raysync.training.server.flat_optimizer import FlatOptimizer
from raysync.training.worker.computation import WorkerComputation
from raysync.training.worker.flat import FlatModel
from raysync.training.worker.gradient import GradientComputation
from raysync.training.worker.wire import Wire


@pytest.fixture
def worker():
    worker = Worker(threads=Threads(torch.get_num_threads()), role=Role("worker-0"))
    group = config.WorkerGroup(
        step_s=0.5, link=config.Link(latency_s=0.1, bandwidth_bytes_per_s=2000)
    )
    worker._link, worker._batch_size, worker._vector_bytes = group.link, 8, 400
    worker._reader = object()
    worker._step_time = StepTime(group, 0, "w-0", 8)
    return worker


@pytest.mark.parametrize(
    ("batch", "pulls", "delay_s", "busy_s"),
    [
        ((7, 8), True, 0.1 + 400 / 2000, 0.5),
        ((7, 8, StepFault(3.0, 0.25)), True, 0.1 + 400 / 2000 + 0.25, 1.5),
        ((7, 8, StepFault(3.0, 0.25)), False, None, 1.5),
        ((7, 2), True, 0.1 + 400 / 2000, 0.125),
    ],
)
def test_a_worker_waits_for_its_weights_before_it_computes_and_is_not_busy_then(
    monkeypatch, worker, batch, pulls, delay_s, busy_s
):
    slept = []
    monkeypatch.setattr(worker_module, "now_s", lambda: sum(slept))
    monkeypatch.setattr(worker_module, "sleep_s", lambda seconds: slept.append(max(0.0, seconds)))
    read = []

    def compute(batches, number, steps, size, *progress):
        assert (number, steps, size) == (batch[0], 1, batch[1])
        expected = [] if delay_s is None else [pytest.approx(delay_s)]
        assert slept == expected, "the gradient takes its time on its way"
        return 0.5

    gradient = SimpleNamespace(
        read_weights=read.append,
        outgoing=lambda: torch.zeros(4),
        wire=Wire("float32", 4, 0),
        not_finite=None,
    )
    worker._computation = SimpleNamespace(gradient=gradient, compute=compute, device_s=0.0)
    worker._pulled = PulledWeights(gradient, 16, may_share=True)
    *_, report = worker.step(StepCall(*batch), *([bytes(16)] if pulls else []))
    assert (report.loss, report.busy_s) == (0.5, pytest.approx(busy_s))
    assert len(read) == pulls
    assert torch.backends.cudnn.benchmark == (batch[1] == 8), "only where the worker is warm"


def test_a_worker_computes_as_its_group_and_the_cluster_say(monkeypatch):
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    described = {
        "data": {"name": "digits"},
        "workers": [{"name": "w", "compile": True}],
        "cluster": {"server_shards": 3, "wire": "bf16"},
    }
    training = prepare(config.validate(described), model)
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda loss: compiled.append(loss) or loss)
    spec = spec_of(training, make("asp"))
    [group] = training.groups.values()
    computation = worker_module._gradient_computation(spec, group, training.model, ["cpu"])
    assert compiled == [training.task.loss]
    assert (len(computation.wire.sizes), computation.wire.is_plain) == (3, False)


def test_a_worker_with_local_steps_is_warm_for_its_optimizer(monkeypatch):
    """The first one of a process imports for seconds."""
    place = SimpleNamespace(devices=["cpu"])
    monkeypatch.setattr(worker_module, "current_place", lambda devices: place)
    monkeypatch.setattr(worker_module, "log_ready", lambda *_: None)
    monkeypatch.setattr(worker_module, "warm_up", lambda key, make: make()(0))
    stepped = []
    monkeypatch.setattr(FlatOptimizer, "step", lambda self, *_: stepped.append(self.kind))
    described = {"data": {"name": "digits"}, "workers": [{"name": "w"}]}
    described["local"] = {"optimizer": "adamw", "lr": 0.1}
    training = prepare(config.validate(described), nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    spec = spec_of(training, make("bsp"))
    Worker(Threads(torch.get_num_threads()), Role("worker-0", *spec.slots)).reset(
        spec, training.model
    )
    assert stepped == ["AdamW"]


def test_an_error_of_the_users_model_travels_as_text(monkeypatch, worker):
    """Also one that cannot be pickled."""

    class Unpicklable(ValueError):
        pass

    def compute(*_):
        raise Unpicklable("my layer breaks")

    monkeypatch.setattr(worker_module, "sleep_s", lambda seconds: None)
    worker._computation = worker._pulled = SimpleNamespace(compute=compute, gradient=None)
    with pytest.raises(ActorError) as raised:
        worker.step(StepCall(0, 8))
    assert raised.value.reason.startswith("Unpicklable: my layer breaks (")
    assert raised.value.actor_id == "", "this is no actor"


def test_a_worker_takes_its_buffers_from_the_end_of_a_vector_in_parts(worker):
    flat = FlatModel(nn.BatchNorm1d(2, affine=True))
    gradient = SimpleNamespace(read_buffers=flat.read_buffers)
    worker._computation = SimpleNamespace(gradient=gradient)
    vector = torch.arange(flat.size + flat.buffer_size, dtype=torch.float32)
    worker.restore(RestoreCall(), *outgoing(vector, [3, 3, 4]))
    assert torch.equal(flat.initial()[flat.size :], vector[flat.size :])


@pytest.mark.parametrize("lazy", [False, True])
def test_a_worker_draws_ahead_what_is_in_memory(monkeypatch, lazy):
    """Samples that are read one by one may take long: that must show in the step's seconds."""
    training = prepare(config.validate({"model": "mlp", "workers": [{"count": 1}]}))
    worker = Worker(threads=Threads(torch.get_num_threads()), role=Role("worker-0"))
    samples = training.task.train_set()
    if lazy:
        samples = [samples[index] for index in range(len(samples))]
    drawn, collate = [], training.task.collate
    [slot] = training.shards
    batches = training.batches(slot)
    monkeypatch.setattr(
        batches, "indices", lambda clock, size: drawn.append(clock) or np.arange(size)
    )
    worker._link, worker._batch_size, worker._vector_bytes = config.Link(), 4, 0
    worker._step_time = StepTime(config.WorkerGroup(), 0, "w-0", 4)
    gradient = GradientComputation(training.build(), training.task)
    worker._computation = WorkerComputation(gradient, training.experiment)
    worker._pulled = PulledWeights(gradient, 0, may_share=True)
    worker._reader = BatchReader(samples, collate, batches)
    worker.serve(TwoSteps())
    assert drawn == ([0, 1] if lazy else [0, 1, 2])


class TwoSteps:
    """Two calls, one after the other."""

    def run(self, actor, meanwhile):
        for clock in range(2):
            actor.step(StepCall(clock, 4))
            meanwhile()


@pytest.mark.parametrize(("wire", "sizes"), [("float32", [10, 10]), ("bf16", [5, 1 + 8])])
def test_a_gradient_in_shared_memory_is_the_one_that_would_be_returned(monkeypatch, wire, sizes):
    """Buffers included, in parts, and written into two slots by turns. Of 12 parameters and 8
    numbers in buffers, 10 and 2 parameters are those of the shards.
    """
    torch.manual_seed(0)
    pictures, labels = torch.randn(12, 3), torch.randint(2, (12,))
    slots, mappings, gradients = slots_of(4 * sum(sizes)), Mappings(), {}
    monkeypatch.setattr(worker_module, "sleep_s", lambda seconds: None)
    for shares in (False, True):
        worker = Worker(threads=Threads(torch.get_num_threads()), role=Role("worker-0"))
        torch.manual_seed(1)
        module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False))
        task = SimpleNamespace(
            loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1])
        )
        group = config.WorkerGroup()
        worker._link, worker._batch_size, worker._vector_bytes = group.link, 4, 4 * 20
        worker._step_time = StepTime(group, 0, "w-0", 4)
        gradient = GradientComputation(module, task, wire=wire, shards=2)
        worker._computation = WorkerComputation(gradient, config.validate({}))
        worker._pulled = PulledWeights(gradient, 0, may_share=True)
        worker._reader = SimpleNamespace(
            read=lambda clock, sizes: [
                (pictures[4 * clock : 4 * clock + 4], labels[4 * clock : 4 * clock + 4])
            ],
            seed=lambda clock: clock,
            shares=lambda batches, sizes: [1.0],
        )
        leases = [slots.lease(), slots.lease()]
        gradients[shares] = [
            [
                bytes(mappings.read(part) if shares else part)
                for part in worker.step(
                    StepCall(clock, 4), into=leases[clock % 2].handle if shares else None
                )[:2]
            ]
            for clock in range(3)
        ]
    assert gradients[True] == gradients[False]
    assert [len(part) for part in gradients[True][0]] == [4 * size for size in sizes]
