"""Persistent buffers of any type come home as they are, or as the mean that their type has."""

from contextlib import nullcontext
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import raysync
from raysync import config
from raysync.cluster.transports.payloads import incoming, outgoing
from raysync.config import Update
from raysync.decoupled.stage_computation import StageComputation
from raysync.errors import ConfigError
from raysync.training.formats.state_file import decode, encode
from raysync.training.preparation import prepare
from raysync.training.server.parameter_store import shard_of
from raysync.training.vectors.buffers import BufferSlots
from raysync.training.vectors.flat import FlatModel
from raysync.training.vectors.parts import spans
from raysync.training.vectors.wire import Wire
from raysync.training.worker.gradient import GradientComputation
from tests.builders.plain_torch import Rows, plan, trained_on_whole_batches
from tests.builders.updates import update_plan
from tests.builders.virtual import DATA

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
OTHERS = [
    torch.int64,
    torch.int32,
    torch.int16,
    torch.uint8,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]
SHAPES = [(), (0,), (1,), (3,), (2, 5), (17,)]
WORKERS = ["a#1", "b#1", "c#1"]


class Holder(nn.Module):
    """Some parameters, and buffers."""

    def __init__(self, parameters, buffers):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(parameters))
        for index, buffer in enumerate(buffers):
            self.register_buffer(f"buffer{index}", buffer)


def drawn(dtype, shape, rng):
    """A tensor of any bits, but that a NaN of 16 bits is torch's own."""
    size = torch.Size(shape).numel()
    if dtype == torch.bool:
        return torch.from_numpy(rng.integers(0, 2, shape).astype(bool))
    raw = torch.tensor(rng.integers(0, 256, size * dtype.itemsize).tolist(), dtype=torch.uint8)
    tensor = raw.view(dtype).view(shape)
    if dtype in (torch.float16, torch.bfloat16):
        return torch.where(tensor.isnan(), torch.nan, tensor)
    return tensor


def bits(tensor):
    return tensor.reshape(-1).contiguous().view(torch.uint8).tolist() if tensor.numel() else []


def buffers_of(module):
    return [bits(buffer) for buffer in module.buffers()]


def published(module, rows, shards, wire="float32"):
    """What some servers publish after one update of pushes with those buffers, (Q,) each."""
    flat = FlatModel(module)
    stores = [shard_of(flat, Update(lr=0.1), index, shards, wire) for index in range(shards)]
    form = Wire(wire, flat.size, flat.buffer_size, shards)
    vectors = [
        form.encode(torch.cat([torch.ones(flat.size), row])).clone().split(form.sizes)
        for row in rows
    ]
    arrived = [[incoming(*outgoing(part))[0] for part in vector] for vector in vectors]
    for index, store in enumerate(stores):
        parts = [vector[index] for vector in arrived]
        store.apply(update_plan([1] * len(rows), WORKERS[: len(rows)]), parts)
    return torch.cat([store.publish() for store in stores])


@st.composite
def layouts(draw):
    """Parameters, types and shapes of buffers, and the seed of their values."""
    kinds = st.tuples(st.sampled_from(FLOATS + OTHERS), st.sampled_from(SHAPES))
    return draw(st.integers(3, 40)), draw(st.lists(kinds, max_size=6)), draw(st.integers(0, 99))


def modules(layout, count):
    """Modules of that layout, with values of their own."""
    parameters, kinds, seed = layout
    rng = np.random.default_rng(seed)
    return [Holder(parameters, [drawn(*kind, rng) for kind in kinds]) for _ in range(count)]


@settings(max_examples=40, deadline=None)
@given(layouts(), st.integers(1, 3), st.integers(1, 3), st.sampled_from(["float32", "bf16"]))
def test_a_constant_comes_home_with_its_bits(layout, shards, pushes, wire):
    """Whatever its type and value, however many workers and servers there are."""
    module, other = modules(layout, 2)
    flat = FlatModel(module)
    vector = published(module, [flat.buffers()] * pushes, min(shards, flat.most_servers), wire)
    FlatModel(other).read_buffers(vector)
    assert buffers_of(other) == buffers_of(module)


@settings(max_examples=40, deadline=None)
@given(layouts())
def test_floats_are_averaged_in_their_type_and_others_are_of_one_worker(layout):
    own = modules(layout, 3)
    flats = [FlatModel(module) for module in own]
    home, *more = (
        published(own[0], [flat.buffers() for flat in flats], shards)
        for shards in range(1, min(3, flats[0].most_servers) + 1)
    )
    assert all(bits(vector) == bits(home) for vector in more)
    came = flats[0].layout.tensors(home)
    for each, *values in zip(came, *(list(module.buffers()) for module in own), strict=True):
        if each.dtype in FLOATS:
            in_type = torch.promote_types(each.dtype, torch.float32)
            mean = torch.stack(values).to(in_type).mean(0).to(each.dtype)
            torch.testing.assert_close(each, mean, rtol=1e-6, atol=0, equal_nan=True)
        else:
            assert bits(each) == bits(values[0])


def test_no_server_has_half_a_double():
    for parameters, doubles, shards in product(range(2, 9), range(1, 5), range(1, 9)):
        odd = torch.zeros(doubles, dtype=torch.float64)
        flat = FlatModel(Holder(parameters, [torch.zeros(3), odd]))
        begin = flat.size + flat.layout.slots.floats
        cuts = [span.start for span in spans(flat.size + flat.buffer_size, shards)]
        cut = [each for each in cuts if begin < each < begin + 2 * doubles and (each - begin) % 2]
        assert not cut or shards > flat.most_servers
        assert flat.most_servers <= parameters


def test_more_servers_than_hold_doubles_are_refused():
    def module():
        line = nn.Linear(3, 4)
        line.register_buffer("offset", torch.zeros(1, dtype=torch.float64))
        return line

    for shards in (9, 10):  # of 16 parameters and one double
        experiment = config.validate(SETTINGS | {"cluster": {"server_shards": shards}})
        with pytest.raises(ConfigError, match="server_shards") if shards > 9 else nullcontext():
            prepare(experiment, module, DATA)


@pytest.mark.parametrize("count", [2, 3, 5, 7])
def test_the_mean_of_equal_numbers_is_their_bits(count):
    slots, rng = BufferSlots(1000, 2000, 5), np.random.default_rng(0)
    row = drawn(torch.float32, (3005,), rng)
    row[:3] = torch.tensor([-0.0, 3.4e38, -torch.inf])
    assert bits(slots.mean([row] * count)) == bits(row)


def test_a_mean_is_exact_where_all_agree_and_in_double_where_they_do_not():
    slots = BufferSlots(3, 4, 1)

    def row(offset, other):
        doubles = torch.tensor([1.6e9 + offset, -torch.inf], dtype=torch.float64)
        floats = torch.tensor([0.1, -torch.inf, other])
        return torch.cat([floats, doubles.view(torch.float32), torch.tensor([offset])])

    mean = slots.mean([row(0.25, 1.0), row(0.5, 2.0), row(0.75, 6.0)])
    assert mean[:3].tolist() == [torch.tensor(0.1).item(), -torch.inf, 3.0]
    assert mean[3:7].clone().view(torch.float64).tolist() == [1.6e9 + 0.5, -torch.inf]
    assert mean[7] == 0.25


# ---- through whole runs ----


class Odd(nn.Module):
    """Needs every bit of its buffers to compute what it should; it counts in two ways."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(101, 3), nn.Linear(6, 4)
        self.register_buffer("salt", torch.tensor([998_244_353, 1_000_000_009]))
        self.register_buffer("offset", torch.tensor([1.6e9 + 0.25], dtype=torch.float64))
        self.register_buffer("phase", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.register_buffer("state", torch.tensor([1, 0, 255], dtype=torch.uint8))
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("noise", torch.rand(99, generator=generator))
        self.register_buffer("mask", torch.tensor([0.0, 0.0, 0.0, -torch.inf]))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("rebound", torch.tensor(2**40))

    def forward(self, x):
        if self.training:
            self.count += 1
            self.rebound = self.rebound + 1
        key = (x[:, :1] > 0).long() * self.state.long()[:2]
        x = ((x.double() + 1.6e9 + 0.25) - self.offset).float()
        x = torch.view_as_real(x * self.phase)[..., 0]
        hashed = self.table(((key + 1) * self.salt) % 101).mean(1)
        return self.last(torch.cat([hashed, x], 1)) + self.mask.clamp(min=-9)


CONSTANT = ("salt", "offset", "phase", "state", "noise", "mask")
ROUNDS, BATCH = 10, 6
SETTINGS = {
    "engine": "virtual",
    "batch_size": BATCH,
    "update": {"lr": 0.1, "lr_scaling": "none"},
    "workers": [{"count": 2, "step_s": 1}],
    "workload": {"iterations_per_worker": ROUNDS},
}


def test_bsp_with_such_buffers_is_plain_torch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = config.validate(SETTINGS)
    module = trained_on_whole_batches(
        prepare(experiment, Odd, DATA), partial(torch.optim.SGD, lr=0.1), [[BATCH] * 2] * ROUNDS
    )
    record = raysync.run(experiment, model=Odd, data=DATA)
    came, alone = record.state_dict(), module.state_dict()
    for name, value in alone.items():
        torch.testing.assert_close(came[name], value, rtol=0, atol=1e-5)
    for name in (*CONSTANT, "count", "rebound"):
        assert bits(came[name]) == bits(alone[name])
    assert bits(record.model(Odd()).salt) == bits(alone["salt"])


class Item(nn.Linear):
    """An item of a network that is cut; the parameters of the first one are odd in number."""

    def __init__(self, width, offset):
        super().__init__(3, width)
        self.register_buffer("offset", torch.tensor([1.6e9 + offset], dtype=torch.float64))
        self.register_buffer("salt", torch.tensor([998_244_353]))
        self.register_buffer("scale", torch.tensor([0.1]))
        self.register_buffer("phase", torch.tensor([offset + 1j]))

    def forward(self, x):
        return super().forward(x) * self.scale


def net():
    return nn.Sequential(nn.Linear(3, 3), Item(3, 0.25), nn.Tanh(), Item(3, 0.5), nn.Linear(3, 4))


@pytest.mark.parametrize("mixing", [{}, {"topology": "ring", "mix": "weight"}])
def test_stages_bring_theirs_home(tmp_path, monkeypatch, mixing):
    monkeypatch.chdir(tmp_path)
    paradigm = {"name": "decoupled", "modules": 3, "groups": 2} | mixing
    workers = [{"count": 6, "step_s": 1}]
    record = raysync.run(
        SETTINGS | {"paradigm": paradigm, "workers": workers}, model=net, data=DATA
    )
    came = record.state_dict()
    for name, buffer in net().named_buffers():
        assert bits(came[name]) == bits(buffer)


def test_a_stage_keeps_them_in_its_state():
    own, other = modules((3, [(dtype, (3,)) for dtype in FLOATS + OTHERS], 0), 2)
    stage, fresh = StageComputation(own), StageComputation(other)
    fresh.load_state(decode(encode(stage.state())))
    assert buffers_of(other) == buffers_of(own)


@pytest.mark.parametrize("devices", [1, 3])
def test_devices_of_a_worker_agree_on_a_constant(devices):
    training = prepare(config.validate(SETTINGS | {"keep": "none"}), Odd, DATA)
    computation = GradientComputation(training.build(), training.task, ["cpu"] * devices)
    computation.compute(training.reader(next(iter(training.groups))), 0, BATCH)
    came, built = computation.model.layout.tensors(computation.outgoing()), Odd()
    for (name, buffer), value in zip(built.named_buffers(), came, strict=True):
        is_count = name in ("count", "rebound")
        assert bits(value) == bits(buffer + 1 if is_count else buffer), name


def test_what_a_module_puts_in_place_of_a_buffer_is_not_written_to():
    """It may be a view of a batch, or of another buffer."""

    class Latest(Holder):
        def forward(self, x):
            self.buffer1, self.buffer0 = self.buffer0, x[0]
            return self.weight * x

    def module():
        return Latest(3, [torch.zeros(3), torch.ones(3)])

    one, other, batch = module(), module(), torch.full((2, 3), 5.0)
    flat, flat_of_other = FlatModel(one), FlatModel(other)
    for _ in range(2):
        one(batch)
        other(2 * batch)
    before = buffers_of(other)
    flat.read_buffers(flat_of_other.buffers())
    assert buffers_of(one) == before
    assert batch.eq(5).all()


# ---- what cannot travel is refused by name ----


def expanded(module):
    return torch.ones(1).expand(3)


@torch.inference_mode()
def inferred(module):
    return torch.ones(3)


REFUSED = {
    "sparse": lambda module: torch.eye(3).to_sparse(),
    "quantized": lambda module: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "nested": lambda module: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "expanded": expanded,
    "inferred": inferred,
    "of 4 bits": lambda module: torch.empty(3, dtype=torch.int4),
    "a view of a parameter": lambda module: module.weight.detach()[0],
    "elsewhere": lambda module: torch.empty(3, device="meta"),
}


class Line(nn.Linear):
    """Has a buffer that changes in a forward pass."""

    def __init__(self, make, then=None):
        super().__init__(5, 2)
        self.register_buffer("odd", make(self))
        self.then = then

    def forward(self, x):
        if self.then is not None:
            self.odd = self.then(self)
        return super().forward(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("keep", ["none", "final"])
@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_cannot_travel_is_refused_by_name(make, keep):
    with pytest.raises(ConfigError, match="'odd' of torch"):
        plan(Rows(lambda: Line(make)), keep=keep)


@pytest.mark.parametrize(
    ("make", "then"),
    [
        (lambda module: torch.ones(2), lambda module: torch.ones(3)),
        (lambda module: torch.ones(2), lambda module: torch.ones(2).double()),
        (lambda module: torch.ones(2), lambda module: None),
        (lambda module: None, lambda module: torch.ones(2)),
    ],
    ids=["grows", "another type", "goes", "comes"],
)
def test_what_becomes_something_else_is_refused_by_name(make, then):
    with pytest.raises(ConfigError, match="'odd' of torch"):
        plan(Rows(lambda: Line(make, then)))


def test_a_buffer_that_does_not_travel_may_be_anything():
    class Own(nn.Linear):
        def __init__(self):
            super().__init__(3, 4)
            self.register_buffer("own", torch.ones(1).expand(3), persistent=False)

    assert prepare(config.validate(SETTINGS), Own, DATA).has_buffers is False


def test_a_buffer_of_two_stages_is_refused():
    def shared():
        first, second = Item(3, 0.0), Item(3, 0.0)
        second.salt = first.salt
        return nn.Sequential(first, second)

    paradigm = {"name": "decoupled", "modules": 2, "groups": 1}
    with pytest.raises(ConfigError, match="share"):
        raysync.run(SETTINGS | {"paradigm": paradigm, "keep": "none"}, model=shared, data=DATA)
