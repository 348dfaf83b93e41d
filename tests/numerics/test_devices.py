"""A worker with several devices, lower precision, and (where there is one) a GPU."""

import pytest
import torch
from torch import nn

from raysync import config
from raysync.training.device import Device
from raysync.training.gradient import GradientComputation
from raysync.training.models import ModelPlan
from raysync.training.task import prepare

SETTINGS = {"data": {"name": "digits", "train_samples": 200}, "batch_size": 30, "workers": [{"name": "w"}]}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this machine")


def gradient(devices, precision="float32", model=None, batch_size=30, clocks=1):
    task = prepare(config.validate(SETTINGS), model=model)
    computation = GradientComputation(task.model.build(), task.data, devices, precision)
    torch.manual_seed(0)
    computation.read_weights([0.1 * torch.randn(computation.model.size + computation.model.buffer_size)])
    losses = [computation.compute(task.batches("w-0"), clock, batch_size) for clock in range(clocks)]
    return losses[-1], computation.outgoing().clone(), computation


@pytest.mark.parametrize("batch_size", [30, 2, 7])
def test_two_devices_average_to_the_gradient_of_the_whole_batch(batch_size):
    """7 samples are shared as 4 and 3, and weighted as such."""
    loss, vector, _ = gradient(["cpu", "cpu"], batch_size=batch_size)
    loss_of_one, vector_of_one, _ = gradient(["cpu"], batch_size=batch_size)
    assert loss == pytest.approx(loss_of_one, abs=1e-6)
    assert torch.allclose(vector, vector_of_one, atol=1e-6)
    assert vector.abs().max() > 1e-3


def batch_normed():
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))


def test_buffers_are_the_mean_of_the_replicas():
    _, vector, computation = gradient(["cpu"] * 3, model=batch_normed(), clocks=2)
    own = [torch.cat([buffer.reshape(-1).float() for buffer in replica.model.module.buffers()])
           for replica in computation._replicas]
    assert not torch.equal(own[0], own[1])
    assert torch.allclose(vector[computation.model.size :], sum(own) / 3)
    assert vector[-1] == 2, "batches seen"


def test_bf16_is_near_float32_and_keeps_float32_gradients():
    loss, vector, _ = gradient(["cpu"], precision="bf16")
    exact_loss, exact, _ = gradient(["cpu"])
    assert vector.dtype == torch.float32
    assert loss != exact_loss
    assert loss == pytest.approx(exact_loss, rel=0.02)
    assert (vector - exact).norm() < 0.05 * exact.norm()


def test_a_cpu_copies_nothing():
    tensor = torch.arange(3.0)
    assert Device("cpu").upload(tensor) is tensor
    assert Device("cpu").download(tensor) is tensor


@needs_gpu
def test_copies_arrive_whole():
    """Many at once, each used at once: a copy that is not waited for, or whose memory is reused, would show."""
    device = Device("cuda:0")
    hosts = [torch.full((1_000_003,), float(number)) for number in range(20)]
    doubled = [device.upload(host) * 2 for host in hosts]
    for host, there in zip(hosts, doubled, strict=True):
        back = device.download(there)
        assert back.is_pinned()
        assert torch.equal(back, 2 * host)


@needs_gpu
@pytest.mark.parametrize("devices", [["cuda:0"], ["cuda:0", "cuda:0"]])
def test_a_gpu_computes_what_a_cpu_does(devices):
    loss, vector, _ = gradient(devices, clocks=3)
    loss_of_cpu, vector_of_cpu, _ = gradient(["cpu"], clocks=3)
    assert loss == pytest.approx(loss_of_cpu, rel=1e-3)
    assert torch.allclose(vector, vector_of_cpu, atol=1e-3)


@needs_gpu
@pytest.mark.parametrize("name", ["resnet20", "alexnet-small"])
def test_models_train_on_a_gpu_in_bf16(name):
    plan = ModelPlan(name, {}, (3, 32, 32), 10, 0)
    data = {"name": "synthetic", "parameters": {"shape": [3, 32, 32], "train": 300}}
    task = prepare(config.validate(SETTINGS | {"data": data}))
    computation = GradientComputation(plan.build(), task.data, ["cuda:0"], "bf16")
    losses = []
    for clock in range(30):
        losses.append(computation.compute(task.batches("w-0"), clock, 30))
        computation.read_weights([computation.model.initial() - 0.02 * computation.outgoing()])
    assert losses[-1] < losses[0]
