"""The order and the overlap of what a GPU is asked to do, over a fake that computes nothing."""

import pytest
import torch
from torch import nn

from raysync import config
from raysync.cluster.actors.server_actor import ServerOnGpu
from raysync.config import Local
from raysync.decoupled.cut import cut
from raysync.decoupled.stage_computation import StageComputation
from raysync.engine.messages import ApplyCall, BackwardCall, ForwardCall
from raysync.programs.program import Handled
from raysync.programs.stage import StageProgram
from raysync.training.data.batch_structure import batch_to
from raysync.training.preparation import prepare
from raysync.training.worker.device import Device
from raysync.training.worker.gradient import GradientComputation
from raysync.training.worker.local_steps import LocalSteps
from tests.fakes.cuda import FakeCuda, Hazard

SETTINGS = {"data": {"name": "digits", "train_samples": 200}, "workers": [{"name": "w"}]}


def test_copies_run_beside_the_computation_in_an_order_that_is_asked_for():
    """Two vectors up, operations on them, their results down, in both ways."""
    with FakeCuda() as cuda:
        gpu = Device("cuda:0")
        for number in range(2):
            doubled = gpu.upload(torch.full((5,), float(number))) * 2
            gpu.download(doubled).add_(1)
            gpu.read_later(doubled)()
    one = [
        "stream 1: copy in",
        "computing waits for stream 1",
        "memory waits for computing",
        "computing: mul",
        "stream 1 waits for computing",
        "stream 1: copy out",
        "host waits for stream 1",
        "computing: copy out",
        "computing: event",
        "host waits for an event",
    ]
    assert cuda.trace == one * 2


def test_what_is_on_the_gpu_already_is_not_copied():
    with FakeCuda() as cuda:
        gpu = Device("cuda:0")
        there = gpu.upload(torch.ones(4))
        cuda.trace.clear()
        assert gpu.upload(there) is there
    assert cuda.trace == []


class Noting:
    """A batch that moves itself."""

    def __init__(self):
        self.devices = []

    def to(self, device):
        self.devices.append(device)


def test_a_batch_that_moves_itself_is_asked_to():
    batch = Noting()
    with FakeCuda():
        assert batch_to((batch, "plain"), Device("cuda:0").upload) == (batch, "plain")
    assert batch.devices == ["cuda:0"]
    assert Device("cpu").upload(batch) is batch
    assert batch.devices == ["cuda:0"]


def gpu_copy():
    return torch.ones(4).pin_memory().to("cuda:0", non_blocking=True)


def read_too_early():
    host = torch.empty(4, pin_memory=True)
    host.copy_(gpu_copy(), non_blocking=True)
    return host + 1


def write_too_early():
    host = torch.ones(4).pin_memory()
    host.to("cuda:0", non_blocking=True)
    host.zero_()


def compute_too_early():
    with torch.cuda.stream(torch.cuda.Stream("cuda:0")):
        there = gpu_copy()
    return there + 1


@pytest.mark.parametrize("program", [read_too_early, write_too_early, compute_too_early])
def test_the_fake_notices_what_a_gpu_might_not_show(program):
    with FakeCuda(), pytest.raises(Hazard):
        program()


def batch_normed():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 10)
    )


@pytest.fixture
def training():
    return prepare(config.validate(SETTINGS), model=batch_normed())


def on_gpu(training, **settings):
    """A computation within a fake, its reader, and the length of its vectors."""
    computation = GradientComputation(training.build(), training.task, ["cuda:0"], **settings)
    size = computation.model.size + computation.model.buffer_size
    return computation, training.reader("w-0"), size


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_a_step_leaves_nothing_to_chance_and_nobody_waits_until_all_is_launched(
    training, micro_batch
):
    """Weights, batches and gradient go over the stream of copies; all that is computed is on the
    GPU, or torch would refuse to mix.
    """
    with FakeCuda() as cuda:
        computation, reader, size = on_gpu(training, micro_batch=micro_batch, draws_ahead=True)
        vector, took = torch.ones(size), set()
        for clock in range(2):
            cuda.trace.clear()
            computation.read_weights([vector])
            computation.compute(reader, clock, 8)
            assert computation.outgoing().add(1).shape == vector.shape
            took.add(computation.device_s)
            assert f"seed {reader.seed(clock)}" in cuda.trace, "for dropout"
            assert torch.initial_seed() == reader.seed(clock), "for what a model draws on the CPU"
    assert min(took) > 0, "the host has waited for the marks of time"
    assert len(took) == 1, "each step has its own"
    parts = 1 if micro_batch is None else 2
    assert cuda.trace.count("stream 1: copy in") == 1 + 2 * parts, "weights, samples, labels"
    assert cuda.trace.count("computing: native_batch_norm_backward") == parts
    assert "computing: copy in" not in cuda.trace
    assert cuda.trace[-3:] == [
        *("stream 1 waits for computing", "stream 1: copy out", "host waits for stream 1")
    ]
    waits = [number for number, line in enumerate(cuda.trace) if line.startswith("host waits")]
    steps = enumerate(zip(cuda.trace, cuda.trace[1:], strict=False), 1)
    events = [n for n, pair in steps if pair[1] == "computing: event" and "copy" not in pair[0]]
    assert waits[0] > max(events), "of which the last one is behind the last backward pass"
    told = [cuda.trace[number] for number in waits]
    assert told == ["host waits for an event", "host waits for stream 1"], "loss, gradient"
    drawn = [number for number, line in enumerate(cuda.trace) if line == "stream 1: copy in"]
    assert (drawn[-1] > max(events)) == (micro_batch is None), "the next batch is on its way"
    for begin, end in zip(events[::2], events[1::2], strict=True):
        between = cuda.trace[begin:end]
        assert not any(line.endswith(("copy in", "copy out")) for line in between)
        assert "computing: native_batch_norm" in between
        assert "computing: native_batch_norm_backward" in between


@pytest.mark.parametrize("is_pinned", [False, True])
def test_a_gradient_is_in_the_vector_that_was_given_for_it_before_others_read_it(
    training, is_pinned
):
    """As in shared memory, and in a registered buffer, which is pinned."""
    with FakeCuda():
        computation, reader, size = on_gpu(training)
        given = torch.zeros(size)
        given = given.pin_memory() if is_pinned else given
        computation.write_into(given)
        for clock in range(2):
            computation.compute(reader, clock, 8)
            assert computation.outgoing() is given
            assert given.add(1).shape == (size,)


def test_a_gradient_of_a_gpu_is_written_into_a_vector_there_without_a_copy(training):
    with FakeCuda() as cuda:
        computation, reader, size = on_gpu(training)
        weights, given = (torch.zeros(size).to("cuda:0") for _ in range(2))
        computation.write_into(given)
        cuda.trace.clear()
        computation.read_weights([weights])
        computation.compute(reader, 0, 8)
        assert computation.outgoing() is given
        assert computation.model.outgoing is given, "no copy on the GPU, either"
    assert cuda.trace.count("stream 1: copy in") == 2, "samples, labels"
    assert not any("stream 1: copy out" in line for line in cuda.trace)
    waits = [line for line in cuda.trace if line.startswith("host waits")]
    assert waits == ["host waits for an event"], "for the loss"


def test_a_gpu_rounds_a_gradient_and_then_copies_it(training):
    """Half the bytes over PCIe."""
    with FakeCuda() as cuda:
        computation, reader, _ = on_gpu(training, wire="bf16")
        cuda.trace.clear()
        computation.compute(reader, 0, 8)
        assert computation.outgoing().add(1).shape == (sum(computation.wire.sizes),)
    assert "computing: copy in" not in cuda.trace
    assert cuda.trace[-3:] == [
        *("stream 1 waits for computing", "stream 1: copy out", "host waits for stream 1")
    ]


def test_local_steps_wait_for_a_step_when_the_next_one_is_launched(training):
    with FakeCuda() as cuda:
        computation, reader, _ = on_gpu(training)
        steps = LocalSteps(computation, Local(optimizer="RMSprop", lr=0.1))
        cuda.trace.clear()
        steps.compute(reader, 0, 4, 8)
        assert steps.device_s > 0
    passes = [n for n, line in enumerate(cuda.trace) if line.endswith("batch_norm_backward")]
    waits = [n for n, line in enumerate(cuda.trace) if line == "host waits for an event"]
    assert (len(passes), len(waits)) == (4, 4)
    for launched, wait in zip(passes[1:], waits[:-1], strict=True):
        assert launched < wait
    assert all(wait < launched for wait, launched in zip(waits[:-2], passes[2:], strict=True))


class Updating:
    """A server's program."""

    def handle(self, message, inputs, into=None):
        return Handled((sum(inputs[1:], inputs[0]) * 2,), is_borrowed=True)


def test_a_server_on_a_gpu_has_read_its_inputs_once_it_answers():
    """Of workers on the GPU, and of another node's; a stranger may then write over both."""
    with FakeCuda() as cuda:
        server = ServerOnGpu(Updating(), "cuda:0")
        there, here = torch.ones(4).to("cuda:0"), torch.ones(4)
        cuda.trace.clear()
        server.handle(ApplyCall(None), [there, here])
        assert cuda.trace[-2:] == ["computing: mul", "host waits for computing"]
        here.zero_()
        with torch.cuda.stream(torch.cuda.Stream("cuda:0")):
            there.zero_()


@pytest.mark.parametrize("weights", ["stash", "latest"])
def test_the_stages_of_a_network_compute_on_the_gpu_in_an_order_that_is_asked_for(
    training, weights
):
    first, last = cut(batch_normed(), 2, training.task.plan.example)
    with FakeCuda() as cuda:
        stages, vectors = [], []
        for number, part in ((1, first), (2, last)):
            computation = StageComputation(part.to("cuda:0"), weights)
            vectors.append(torch.ones(len(computation.initial())))
            stages.append(
                StageProgram(
                    computation=computation,
                    stage=number,
                    stages=2,
                    task=training.task,
                    reader=training.reader("w-0"),
                    batch_size=8,
                    device="cuda:0",
                )
            )
        cuda.trace.clear()
        for batch in (1, 2):
            (y,), *_ = stages[0].handle(ForwardCall(batch), [vectors[0]])
            assert stages[0].device_s > 0
            (_, dx), *_ = stages[1].handle(BackwardCall(batch), [vectors[1], y])
            assert stages[1].device_s > 0
            (vector, _), *_ = stages[0].handle(BackwardCall(batch), [dx])
            assert vector.add(1).ndim == 1
            assert stages[0].device_s > 0
        assert dx.shape == y.shape
    assert "computing: copy in" not in cuda.trace
