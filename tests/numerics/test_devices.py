"""A worker with several devices, lower precision, and (where there is one) a GPU."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from raysync import config
from raysync.config import Update, WorkerGroup
from raysync.errors import ConfigError
from raysync.training.evaluation import evaluate
from raysync.training.formats.state_file import decode, encode
from raysync.training.optim import flat_optimizer, optimizers
from raysync.training.preparation import prepare
from raysync.training.server import parameter_store
from raysync.training.worker.device import Device, has_kernels, refuse_without_kernels, try_kernels
from raysync.training.worker.gradient import GradientComputation
from raysync.training.worker.precision import refuse_unsupported
from tests.builders.messages import naming
from tests.builders.updates import update_plan

SETTINGS = {
    "data": {"name": "digits", "train_samples": 200},
    "batch_size": 30,
    "workers": [{"name": "w"}],
}
needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="torch sees no GPU on this machine"
)


def gradient(devices, precision="float32", model=None, batch_size=30, clocks=1, into=None):
    training = prepare(config.validate(SETTINGS), model=model)
    computation = GradientComputation(
        training.build(), training.task, devices, WorkerGroup(precision=precision)
    )
    if into is not None:
        computation.write_into(into)
    torch.manual_seed(0)
    computation.read_weights(
        [0.1 * torch.randn(computation.model.size + computation.model.buffer_size)]
    )
    losses = [
        computation.compute(training.reader("w-0"), clock, batch_size) for clock in range(clocks)
    ]
    return losses[-1], computation.outgoing().clone(), computation


@pytest.mark.parametrize("batch_size", [30, 2, 7])
def test_two_devices_average_to_the_gradient_of_the_whole_batch(batch_size):
    """7 samples are shared as 4 and 3, and weighted as such."""
    loss, vector, _ = gradient(["cpu", "cpu"], batch_size=batch_size)
    loss_of_one, vector_of_one, _ = gradient(["cpu"], batch_size=batch_size)
    assert loss == pytest.approx(loss_of_one, abs=1e-6)
    assert torch.allclose(vector, vector_of_one, atol=1e-6)
    assert vector.abs().max() > 1e-3


@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu"]])
def test_a_gradient_comes_into_the_vector_that_is_given(devices):
    _, expected, _ = gradient(devices, model=batch_normed())
    given = torch.full_like(expected, float("nan"))
    *_, computation = gradient(devices, model=batch_normed(), into=given)
    assert torch.equal(given, expected)
    assert computation.model.outgoing.data_ptr() == given.data_ptr(), "without a copy"


def batch_normed():
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))


def test_buffers_are_the_mean_of_the_replicas():
    _, vector, computation = gradient(["cpu"] * 3, model=batch_normed(), clocks=2)
    reader, own = prepare(config.validate(SETTINGS)).reader("w-0"), []
    for part in range(3):
        alone = nn.BatchNorm1d(64)
        for clock in range(2):
            alone(reader.read(clock, [10] * 3)[part][0].flatten(1))
        own.append(torch.cat([alone.running_mean, alone.running_var]))
    mean, variance, seen = computation.model.layout.tensors(vector)
    assert not torch.allclose(own[0], own[1])
    assert torch.allclose(torch.cat([mean, variance]), sum(own) / 3)
    assert seen == 2, "batches"


def test_bf16_is_near_float32_and_keeps_float32_gradients():
    loss, vector, _ = gradient(["cpu"], precision="bf16")
    exact_loss, exact, _ = gradient(["cpu"])
    assert vector.dtype == torch.float32
    assert loss != exact_loss
    assert loss == pytest.approx(exact_loss, rel=0.02)
    assert (vector - exact).norm() < 0.05 * exact.norm()


def reader_of(training, before_reading):
    """A reader that calls something before it reads a batch."""
    itself = training.reader("w-0")

    def read(clock, sizes):
        before_reading(clock, sizes)
        return itself.read(clock, sizes)

    return SimpleNamespace(read=read, seed=itself.seed, shares=itself.shares)


@pytest.mark.parametrize("meanwhile", [True, False], ids=["meanwhile", "afterwards"])
def test_the_next_batch_is_drawn_ahead_and_dropped_if_another_is_asked_for(monkeypatch, meanwhile):
    """While a GPU computes, or, as a CPU has nothing to do meanwhile, when the worker has
    answered.
    """
    training = prepare(config.validate(SETTINGS))
    with monkeypatch.context() as patch:
        patch.setattr(Device, "is_gpu", meanwhile)
        ahead = GradientComputation(training.build(), training.task, draws_ahead=True)
    plain, drawn = GradientComputation(training.build(), training.task), []
    reader = reader_of(training, lambda clock, sizes: drawn.append((clock, sum(sizes))))
    ahead.draw_ahead(reader)
    assert not drawn, "no batch has told which one follows"
    asked = [(0, 30), (1, 30), (2, 20), (7, 20), (8, 20)]
    for clock, size in asked:
        loss = ahead.compute(reader, clock, size)
        assert ((clock + 1, size) in drawn) == meanwhile
        assert plain.compute(reader, clock, size) == loss
        assert torch.equal(ahead.outgoing(), plain.outgoing())
        for _ in range(2):
            ahead.draw_ahead(reader)
    assert drawn.count((1, 30)) == 2, "ahead, and by the plain one"
    assert drawn.count((2, 30)) == 1, "ahead, and in vain"
    assert drawn.count((8, 20)) == 2


def test_an_error_of_drawing_ahead_is_that_of_the_step_that_would_have_drawn():
    training = prepare(config.validate(SETTINGS))
    ahead = GradientComputation(training.build(), training.task)

    def refuse_one(clock, sizes):
        if clock == 1:
            raise RuntimeError("no such sample")

    reader = reader_of(training, refuse_one)
    for clock in (0, 2, 0):
        ahead.compute(reader, clock, 30)
        ahead.draw_ahead(reader)
    with pytest.raises(RuntimeError, match="no such sample"):
        ahead.compute(reader, 1, 30)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"delay_compensation": "adaptive"},
        {"staleness_scaling": "inverse"},
    ],
)
def test_a_store_stays_on_the_device_of_its_vectors(monkeypatch, settings):
    """torch's meta device computes nothing, and refuses to mix its tensors with a CPU's."""
    monkeypatch.setattr(flat_optimizer, "is_fused", lambda update: False)
    monkeypatch.setattr(optimizers, "is_fused", lambda update: False)
    update = Update(**settings)
    initial, *vectors = torch.empty(4, 12, device="meta")
    store = parameter_store.ParameterStore(initial, 10, update)
    vectors *= 1 if update.delay_compensation is None else 2
    for _ in range(2):
        store.apply(update_plan([5, 5, 5], ["a", "b", None], staleness=[0, 1, 2]), vectors)
    state = store.state()
    kept = [store.publish(), *state["buffers"].values(), *tree_leaves(state["optimizer"]["state"])]
    assert {each.device.type for each in kept if isinstance(each, torch.Tensor)} == {"meta"}


@needs_gpu
def test_a_store_goes_on_from_a_state_on_its_own_device():
    """Bit by bit, as on a CPU: see test_snapshots.py."""
    update = Update(momentum=0.9, delay_compensation="adaptive")
    initial, *vectors = torch.randn(4, 12, generator=torch.Generator().manual_seed(0)).cuda()
    stores = [parameter_store.ParameterStore(initial, 10, update) for _ in range(2)]
    plan = update_plan([5, 5, 5], ["a", "b", None], staleness=[0, 1, 2])
    stores[0].apply(plan, [*vectors, *[initial] * 3])
    stores[1].restore(decode(encode(stores[0].state())))
    for store in stores:
        store.apply(plan, [*vectors, *[initial] * 3])
    assert stores[1].publish().is_cuda
    assert torch.equal(stores[0].publish(), stores[1].publish())


def test_a_cpu_copies_nothing():
    tensor = torch.arange(3.0)
    assert Device("cpu").upload(tensor) is tensor
    assert Device("cpu").download(tensor) is tensor


@needs_gpu
def test_copies_arrive_whole(monkeypatch):
    """Many at once, each used at once, on streams that are held up: a copy that is not waited for,
    or whose memory is reused, would show.
    """
    streams, kind, held_cycles = [], torch.cuda.Stream, 10**7
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "Stream", lambda name: streams.append(kind(name)) or streams[-1])
        device = Device("cuda:0")
    [copying] = streams
    hosts = [torch.full((1_000_003,), float(number)) for number in range(20)]
    doubled = []
    for host in hosts:
        with torch.cuda.stream(copying):
            torch.cuda._sleep(held_cycles)
        doubled.append(device.upload(host) * 2)
    for host, there in zip(hosts, doubled, strict=True):
        torch.cuda._sleep(held_cycles)
        there += 0
        back = device.download(there)
        assert back.is_pinned()
        assert torch.equal(back, 2 * host)


TWO_GPUS = pytest.mark.skipif(
    torch.cuda.device_count() < 2, reason="torch sees no two GPUs on this machine"
)


@needs_gpu
@pytest.mark.parametrize(
    ("devices", "precision", "off"),
    [
        (["cuda:0"], "float32", 1e-3),
        (["cuda:0"], "tf32", 0.02),
        (["cuda:0"], "bf16", 0.02),
        (["cuda:0", "cuda:0"], "float32", 1e-3),
        pytest.param(["cuda:0", "cuda:1"], "float32", 1e-3, marks=TWO_GPUS),
    ],
)
def test_a_gpu_computes_what_a_cpu_does(devices, precision, off):
    loss, vector, _ = gradient(devices, precision, convolutions(), clocks=3)
    loss_of_cpu, vector_of_cpu, _ = gradient(["cpu"], "float32", convolutions(), clocks=3)
    assert loss == pytest.approx(loss_of_cpu, rel=off)
    assert (vector - vector_of_cpu).norm() < off * vector_of_cpu.norm()


def convolutions():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))


@pytest.fixture
def tf32():
    """Whether products may be rounded, by torch's own switches; they are as before afterwards."""
    switches = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [switch.allow_tf32 for switch in switches]
    yield lambda: {switch.allow_tf32 for switch in switches}
    for switch, was in zip(switches, before, strict=True):
        switch.allow_tf32 = was


@pytest.mark.parametrize(
    ("precision", "allowed"), [("float32", False), ("tf32", True), ("bf16", True)]
)
def test_float32_is_what_it_says_also_after_others_have_computed(tf32, precision, allowed):
    """The switches are the process's, in which the virtual engine computes for several groups in
    turn, and evaluates.
    """
    *_, computation = gradient(["cpu"], precision=precision)
    *_, other = gradient(["cpu"], precision="float32" if allowed else "tf32")
    assert tf32() == {not allowed}
    training = prepare(config.validate(SETTINGS))
    computation.compute(training.reader("w-0"), 0, 30)
    assert tf32() == {allowed}
    task = training.task
    evaluate(other.model, other.model.initial(), task, task.test_set(), 50)
    assert tf32() == {False}


@pytest.mark.parametrize(
    ("devices", "seeded"),
    [(["cpu"], [0]), (["cpu", "cpu"], [0]), (["cpu:0", "cpu:1", "cpu:2"], [0, 1, 2])],
)
def test_replicas_on_devices_of_their_own_draw_masks_of_their_own(monkeypatch, devices, seeded):
    """The first one draws what a worker with one device does; replicas of one device draw from its
    generator in turn.
    """
    seeds = {}
    monkeypatch.setattr(Device, "seed", lambda device, value: seeds.setdefault(device.name, value))
    gradient(devices)
    first = prepare(config.validate(SETTINGS)).batches("w-0").seed(0)
    assert list(seeds.values()) == [first + number for number in seeded]


@pytest.mark.parametrize(
    ("capability", "built_for", "runs"),
    [
        ((7, 5), "sm_75 sm_80 sm_86 sm_90", True),
        ((8, 9), "sm_75 sm_80 sm_86 sm_90", True),
        ((6, 0), "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120", False),
        ((7, 0), "sm_75 sm_80", False),
        ((12, 0), "sm_75 sm_80 sm_90", False),
        ((12, 1), "sm_80 sm_120a", True),
        ((12, 0), "sm_80 compute_90", True),
        ((8, 0), "sm_75 compute_90", False),
        ((3, 7), "", True),
    ],
)
def test_which_gpus_a_build_of_torch_can_use(capability, built_for, runs):
    """Of T4, L4, P100, V100, and newer ones than it was built for; a build that does not say for
    which is let be.
    """
    assert has_kernels(capability, built_for.split()) == runs


@pytest.mark.parametrize(
    ("precision", "device", "capability", "has"),
    [
        ("bf16", "cuda:0", (7, 5), False),
        ("tf32", "cuda:0", (7, 0), False),
        ("float32", "cuda:0", (7, 0), True),
        ("bf16", "cuda:0", (8, 0), True),
        ("tf32", "cuda:0", (12, 0), True),
        ("bf16", "cpu", (0, 0), True),
        ("tf32", "cpu", (0, 0), True),
    ],
)
def test_a_precision_that_a_gpu_lacks_is_refused(monkeypatch, precision, device, capability, has):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda name: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda name: "a GPU")
    says = f"workers: precision: {precision}: a GPU, of compute capability 7.[05]"
    with nullcontext() if has else pytest.raises(ConfigError, match=says):
        refuse_unsupported(precision, device)


def test_a_gpu_without_kernels_is_refused_in_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda name: (6, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda name: "Tesla P100")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80"])
    with pytest.raises(ConfigError, match=naming("P100 capability 6.0 sm_75 sm_80")):
        refuse_without_kernels("cuda:0")


def test_kernels_are_not_tried_where_they_have_to_be_deterministic(monkeypatch):
    seen = []
    for deterministic in (False, True):
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", deterministic)
        for tries in (True, False):
            try_kernels(tries)
            seen.append(torch.backends.cudnn.benchmark)
    assert seen == [True, False, False, False]
