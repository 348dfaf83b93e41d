"""A server that takes the state of another one goes on as that one does, bit by bit."""

import json

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from msgspec.structs import replace
from safetensors.torch import load, save
from torch import nn

from raysync.config import Update
from raysync.decoupled.gossip import Gossip
from raysync.errors import ConfigError
from raysync.training.formats.state_file import FileMemory, decode, encode
from raysync.training.server.apply_plan import MEAN, ApplyPlan
from raysync.training.server.model_server import MissedUpdate, ModelServer
from raysync.training.server.parameter_store import shard_of
from raysync.training.vectors.flat import FlatModel
from raysync.training.vectors.parts import spans
from tests.builders.messages import naming

ROUNDS = 8
WORKERS = ["a#1", "b#1", "c#1"]
RING = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]
RAMP = {"name": "linear", "over": 0.5, "start": 0.1}
OURS = "tests.builders.optimizers:"
OPTIMIZERS = [
    {},
    {"momentum": 0.9, "nesterov": True, "momentum_ramp": RAMP},
    {"optimizer": {"name": "adam", "amsgrad": True}},
    {"optimizer": "adamw", "weight_decay": 0.1},
    {"optimizer": "rmsprop", "momentum": 0.5, "momentum_ramp": RAMP},
    {"optimizer": OURS + "Counting"},
    *(
        {"optimizer": name}
        for name in ("adadelta", "adagrad", "adamax", "asgd", "nadam", "radam", "rprop")
    ),
]
OTHERS = st.fixed_dictionaries(
    {},
    optional={
        "schedule": st.sampled_from(["inverse-sqrt", {"name": "cosine", "warmup": 0.5}]),
        "clip_norm": st.just(0.5),
        "staleness_scaling": st.just("inverse"),
        "delay_compensation": st.sampled_from(["constant", {"name": "adaptive", "decay": 0.5}]),
        "groups": st.just([{"match": ["0.*", "2.bias"], "lr_factor": 0.5}]),
        "phases": st.just({"late": {"lr": 0.02, "clip_norm": 1.0, "lr_scaling": "none"}}),
    },
)
UPDATES = st.builds(lambda one, others: one | others, st.sampled_from(OPTIMIZERS), OTHERS)


def model(width=5):
    torch.manual_seed(0)
    return FlatModel(nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width), nn.Linear(width, 2)))


def fresh(settings, shards=1, mix="", width=5):
    """The servers of a run that has not begun."""
    update, flat = Update(**{"lr": 0.05} | settings), model(width)
    if not mix:
        return [ModelServer(shard_of(flat, update, shard, shards)) for shard in range(shards)]
    return [ModelServer(Gossip(flat, update, RING, mix, 3))]


def parts(number, count, shards):
    """As many vectors with buffers behind them as an update needs; for each shard its parts."""
    generator = torch.Generator().manual_seed(number)
    length = len(model().initial())
    own = spans(length, shards)
    drawn = [torch.randn(length, generator=generator) for _ in range(count)]
    return [[vector[span] for vector in drawn] for span in own]


def advance(servers, begin, end):
    """Make the updates of a run from one number to the other; a worker leaves in between."""
    gossips = isinstance(servers[0].store, Gossip)
    for number in range(begin, end):
        workers = WORKERS if gossips else WORKERS[number % 2 :][: 1 + number % 3]
        plan = ApplyPlan(
            workers=list(workers),
            samples=[8, 3, 5][: len(workers)],
            progress=number / ROUNDS,
            phase="late" if number in (2, 3, 6) else "",
            staleness=[0, 4, 2][: len(workers)],
            version=number + 1,
            replicas=[0, 1, 2] if gossips else [],
        )
        compensates = not gossips and servers[0].store.update.delay_compensation is not None
        its = parts(number, len(workers) * (1 + compensates), len(servers))
        if gossips:
            servers[0].apply(plan, its[0])
        else:
            norms = [server.combine(plan, own) for server, own in zip(servers, its, strict=True)]
            for server in servers:
                server.apply(replace(plan, combined=True), norms)
        if number == ROUNDS // 2:
            for server in servers:
                server.forget("b#1")


def published(servers, replica=MEAN):
    return torch.cat([server.publish(server.version, replica) for server in servers])


def statistics(servers):
    return torch.stack(
        [torch.cat([server.statistics(worker) for server in servers]) for worker in WORKERS]
    )


def resumed(servers, *fresh_ones):
    for server, other in zip(servers, fresh_ones, strict=True):
        other.restore(server.snapshot([], []))
    return list(fresh_ones)


def same(one, other, *replicas):
    assert torch.equal(statistics(one), statistics(other))
    for replica in (MEAN, *replicas):
        assert torch.equal(published(one, replica), published(other, replica))


KINDS = st.one_of(
    st.tuples(UPDATES, st.sampled_from([1, 2, 47]), st.just("")),
    st.tuples(st.sampled_from(OPTIMIZERS), st.just(1), st.sampled_from(["grad", "weight"])),
)
"""Update, shards, and how replicas gossip."""


@settings(max_examples=24)
@given(KINDS, st.integers(0, ROUNDS))
@example((OPTIMIZERS[5], 2, ""), 3)
@example((OPTIMIZERS[2], 1, "grad"), 3)
@example(({"project_radius": 0.5}, 1, ""), 3)
def test_a_server_goes_on_where_another_one_was(kind, cut):
    """A snapshot does not change the server either."""
    whole, interrupted, new = (fresh(*kind) for _ in range(3))
    replicas = range(3) if kind[-1] else ()
    advance(whole, 0, ROUNDS)
    advance(interrupted, 0, cut)
    other = resumed(interrupted, *new)
    same(interrupted, other, *replicas)
    for each in (interrupted, other):
        advance(each, cut, ROUNDS)
        same(whole, each, *replicas)


def test_statistics_are_those_of_the_latest_push():
    servers, size = fresh({}, 3), model().size
    initial = model().initial()
    assert torch.equal(statistics(servers)[:, size:], initial[size:].expand(3, -1))
    advance(servers, 0, 1)
    pushed = torch.cat([its[0] for its in parts(0, 1, 3)])
    assert torch.equal(statistics(servers)[0, size:], pushed[size:])
    assert torch.equal(statistics(servers)[1, size:], initial[size:])
    assert not statistics(servers)[:, :size].any()


def test_statistics_of_replicas_are_those_of_their_own_workers():
    servers, size = fresh({}, mix="grad"), model().size
    advance(servers, 0, 1)
    pushed = torch.stack(parts(0, 3, 1)[0])
    assert torch.equal(statistics(servers)[:, size:], pushed[:, size:])


def test_vectors_are_kept_with_the_state():
    """Also those that share memory: two gradients may have been computed on the same weights."""
    [server], [other] = fresh({}), fresh({})
    vector = torch.arange(4.0)
    names, vectors = list("abcd"), [vector, vector, vector[1:], server.publish(0, MEAN)]
    other.restore(server.snapshot(names, vectors))
    for name, kept in zip(names, vectors, strict=True):
        assert torch.equal(other.saved(name), kept)
        with pytest.raises(KeyError):
            other.saved(name)


def test_tensors_keep_their_strides():
    """All but those that lie in memory several times."""
    tensors = [torch.arange(24.0).view(2, 3, 4).transpose(0, 2), torch.arange(9)[::2]]
    for tensor, again in zip(tensors, decode(encode({"a": tensors}))["a"], strict=True):
        assert torch.equal(again, tensor)
        assert (again.stride(), again.dtype) == (tensor.stride(), tensor.dtype)
    expanded = torch.ones(1).expand(3)
    assert torch.equal(decode(encode({"a": expanded}))["a"], expanded)


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3))))
def test_a_file_in_reused_memory_has_the_bytes_that_safetensors_writes(tensors):
    generator, memory = torch.Generator().manual_seed(0), FileMemory()
    state = [torch.randint(0, 9, shape, generator=generator).to(dtype) for dtype, shape in tensors]
    encode({"longer": [torch.ones(500), *state]}, memory)
    file = bytes(encode({"é": state, "a": 1}, memory))
    length = 8 + int.from_bytes(file[:8], "little")
    assert file == save(load(file), json.loads(file[8:length])["__metadata__"])
    assert file == bytes(encode({"é": state, "a": 1}))
    for tensor, again in zip(state, decode(file)["é"], strict=True):
        assert again.dtype == tensor.dtype
        assert torch.equal(again, tensor)


@pytest.mark.parametrize(
    ("others", "message"),
    [
        ({"settings": {"optimizer": "adam"}}, "update.optimizer: 'SGD' instead of 'Adam'"),
        ({"width": 6}, "parameters: 57 instead of 68"),
        ({"shards": 2}, "parameters: 57 instead of 32"),
        ({"settings": {"groups": [{"match": ["0.*"], "lr_factor": 2}]}}, "parameter groups: "),
        ({"settings": {"delay_compensation": "adaptive"}}, "update.delay_comp.* 'adaptive'"),
        ({"mix": "grad"}, "optimizers of replicas: 1 instead of 3"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(others, message):
    data = fresh({})[0].snapshot([], [])
    with pytest.raises(ConfigError, match=f"checkpoint: it does not fit this run: {message}"):
        fresh(**{"settings": {}} | others)[0].restore(data)


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: b"{}" * 9]
)
def test_a_damaged_state_is_refused(damage):
    with pytest.raises(ConfigError, match=naming("checkpoint:")):
        fresh({})[0].restore(damage(fresh({})[0].snapshot([], [])))


def test_a_server_that_missed_an_update_makes_no_snapshot():
    [server] = fresh({})
    with pytest.raises(MissedUpdate, match=naming("version 0 1")):
        server.snapshot([], [], 1)
    with pytest.raises(MissedUpdate):
        server.snapshot([], [])


def test_what_no_file_can_hold_is_named_and_breaks_nothing():
    [server] = fresh({"optimizer": OURS + "Keeping"})
    advance([server], 0, 1)
    with pytest.raises(ConfigError, match=naming("store/optimizer/state/0/kept")):
        server.snapshot([], [])
    assert server.publish(1, MEAN).isfinite().all()


@pytest.mark.parametrize("key", ["$tensor", "$tuple"])
def test_what_would_be_read_as_something_else_is_refused(key):
    with pytest.raises(ConfigError, match=naming("outer")):
        encode({"outer": {key: 1}})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text("abc/."), inner)
        ),
        max_leaves=9,
    )
)
def test_a_state_is_read_as_it_was_written(state):
    assert decode(encode({"state": state})) == {"state": state}
