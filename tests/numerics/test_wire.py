"""Gradients in bfloat16 on their way: against closed forms, and against float32 that was rounded
before.
"""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from raysync import config
from raysync.cluster.transports.payloads import incoming, outgoing
from raysync.config import ParadigmChoice, Update
from raysync.decoupled.plan import check_training
from raysync.errors import ConfigError
from raysync.training.preparation import prepare
from raysync.training.server.parameter_store import ParameterStore
from raysync.training.vectors.parts import spans
from raysync.training.vectors.wire import Wire, gradient_of
from raysync.training.worker.gradient import GradientComputation
from tests.builders.plans import BYTES
from tests.builders.updates import update_plan
from tests.builders.virtual import TIMING, push_times, run, timed

BF16 = {"wire": "bf16"}


def rounded(vector):
    return vector.bfloat16().float()


def test_an_update_is_that_of_the_rounded_gradient_in_float32():
    """bfloat16 has 8 bits: between 1 and 2 its step is 2^-7, between 256 and 512 it is 2. Ties go
    to the even neighbour. The sum 1 + 2^-7 + 3 is none of bfloat16's, and counts of batches are
    not either.
    """
    step = 2.0**-7
    sent = [1 + step / 4, 1 + step / 2, 1 + 3 * step / 2, 1 + step, 257.0, -3e38, 2.0**-130]
    came = [1.0, 1.0, 1 + 2 * step, 1 + step, 256.0, -(2.0**127) * (2 - 30 * step), 2.0**-130]
    count = 2.0**24 - 1
    wire = Wire("bf16", 7, 1)
    assert wire.sizes == [4 + 1]
    store = ParameterStore(torch.zeros(8), 7, Update(lr=1.0), wire="bf16")
    vector = wire.encode(torch.tensor([*sent, count]))
    store.apply(update_plan([8]), [vector])
    expected = -torch.tensor(came).bfloat16().float()
    assert torch.equal(store.publish(), torch.cat([expected, torch.tensor([count])]))
    assert torch.equal(expected[:5], -torch.tensor(came[:5]))
    store.apply(update_plan([8]), [wire.encode(torch.full((8,), 3.0))])
    assert store.publish()[3] == -(1 + step) - 3


@given(
    st.integers(1, 150),
    st.integers(0, 40),
    st.integers(1, 5),
    st.sampled_from(["float32", "bf16"]),
    st.integers(0, 9),
)
def test_every_shard_gets_its_part(parameters, buffers, shards, name, seed):
    """Cut where the weights are cut, through whatever transport."""
    vector = torch.randn(parameters + buffers, generator=torch.Generator().manual_seed(seed))
    wire = Wire(name, parameters, buffers, shards)
    parts = incoming(*outgoing(wire.encode(vector), wire.sizes))
    assert len(parts) == shards
    marks = torch.arange(parameters + buffers) < parameters
    for part, span in zip(parts, spans(len(vector), shards), strict=True):
        whole, own = vector[span], int(marks[span].sum())
        expected = whole[:own] if name == "float32" else rounded(whole[:own])
        assert torch.equal(gradient_of(name, part, own, len(whole) - own).float(), expected)
        assert torch.equal(part[len(part) - (len(whole) - own) :], whole[own:])
        if name == "bf16":
            assert len(part) == -(-own // 2) + len(whole) - own
    if name == "bf16":
        given = wire.encode(vector, torch.full((sum(wire.sizes),), float("nan")))
        assert torch.equal(given.view(torch.int32), wire.encode(vector).view(torch.int32))
    behind = torch.cat(parts)[len(torch.cat(parts)) - buffers :]
    assert torch.equal(behind, vector[parameters:]), "the end of all parts are the buffers"


@pytest.mark.parametrize(
    "update",
    [
        {"momentum": 0.9, "weight_decay": 0.1},
        {"combine": "sum", "clip_norm": 0.5, "lr_scaling": "none"},
        {"optimizer": "adamw", "lr": 0.01},
        {"optimizer": "rmsprop", "lr": 0.01},
        {"staleness_scaling": "inverse"},
        {"delay_compensation": {"name": "adaptive"}, "staleness_scaling": "inverse"},
    ],
)
def test_what_is_added_and_stepped_on_is_in_float32(update):
    """Bit by bit as if vectors had come in float32, rounded; what has come is not written to."""
    size, buffers, draw = 9, 3, torch.Generator().manual_seed(0)
    wire, compensates = Wire("bf16", size, buffers), "delay_compensation" in update
    initial = torch.randn(size + buffers, generator=draw)
    stores = {
        name: ParameterStore(initial, size, Update(**update), wire=name)
        for name in ("float32", "bf16")
    }
    for version in range(6):
        pushes = 1 + version % 3
        vectors = [torch.randn(size + buffers, generator=draw) for _ in range(pushes)]
        bases = [torch.randn(size + buffers, generator=draw) for _ in range(pushes * compensates)]
        plan = update_plan([8, 3, 5][:pushes], progress=0.1, staleness=[1, 3, 2][:pushes])
        arrived = {
            "float32": [torch.cat([rounded(each[:size]), each[size:]]) for each in vectors],
            "bf16": [wire.encode(each).clone() for each in vectors],
        }
        for name, store in stores.items():
            kept = [each.clone() for each in arrived[name]]
            store.apply(plan, [*arrived[name], *bases])
            for before, after in zip(kept, arrived[name], strict=True):
                assert torch.equal(before.view(torch.int32), after.view(torch.int32))
        assert torch.equal(stores["bf16"].publish(), stores["float32"].publish())
    assert stores["bf16"].version == 6


SETTINGS = {"data": {"name": "digits", "train_samples": 100}, "workers": [{"name": "w"}]}


def batch_normed():
    """An odd number of parameters: PReLU has one."""
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.PReLU(), nn.Linear(64, 10))


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("devices", [["cpu"], ["cpu", "cpu"]])
def test_a_worker_sends_its_gradient_rounded_once(devices, given):
    """Also where replicas add theirs, and where it is written into memory that is given."""
    training = prepare(config.validate(SETTINGS), model=batch_normed())
    sent = {}
    for name in ("float32", "bf16"):
        computation = GradientComputation(training.build(), training.task, devices, wire=name)
        if given:
            computation.write_into(torch.full((sum(computation.wire.sizes),), float("nan")))
        computation.compute(training.reader("w-0"), 0, 10)
        sent[name] = computation.outgoing()
    size, buffers = computation.model.size, computation.model.buffer_size
    decoded = gradient_of("bf16", sent["bf16"], size, buffers).float()
    assert torch.equal(decoded, rounded(sent["float32"][:size]))
    assert torch.equal(sent["bf16"][-buffers:], sent["float32"][-buffers:])
    assert len(sent["bf16"]) < 0.6 * len(sent["float32"])
    assert sent["bf16"].view(torch.int32)[-2] == 1, "batches seen"


@pytest.mark.parametrize(
    ("network", "pull_s", "push_s"),
    [
        ({"link": {"bandwidth_bytes_per_s": BYTES}}, 1, 0.5),
        ({"server_bandwidth_bytes_per_s": BYTES}, 1, 0.5),
    ],
)
def test_a_push_takes_half_the_time_of_a_pull(network, pull_s, push_s):
    settings = {"workers": [{"step_s": 1}], "workload": {"samples": 3}, "cluster": BF16}
    cycle_s = pull_s + 1 + push_s
    times = push_times(run(timed(network=network, **settings), "asp"))
    assert times == {"worker-0": [cycle_s, 2 * cycle_s, 3 * cycle_s]}


def test_a_server_reads_half_the_bytes():
    """And the worker waits for the update."""
    settings = {"workers": [{"step_s": 1}], "workload": {"samples": 3}, "cluster": BF16}
    times = push_times(run(timed(network={"update_bytes_per_s": BYTES}, **settings), "asp"))
    assert times == {"worker-0": [1, 2.5, 4]}


def test_a_size_that_is_given_is_halved_too():
    """Where no model is built: of 100 bytes, 25 numbers, 13 pairs are sent."""
    settings = {
        "workers": [{"step_s": 1}],
        "workload": {"samples": 1},
        "network": {"vector_bytes": 100, "link": {"bandwidth_bytes_per_s": 100}},
        "cluster": BF16,
    }
    training = prepare(config.validate(TIMING | settings))
    assert push_times(run(training, "asp")) == {"worker-0": [1 + 1 + 0.52]}


@pytest.mark.parametrize(
    ("choice", "settings"),
    [
        (ParadigmChoice(name="decoupled", modules=1), {}),
        (ParadigmChoice(name="bsp", exchange="ring"), {"engine": "virtual"}),
    ],
    ids=["decoupled", "all-reduce"],
)
def test_what_adds_elsewhere_refuses_it_by_name(choice, settings):
    training = prepare(
        config.validate(SETTINGS | settings | {"cluster": BF16}), model=batch_normed()
    )
    with pytest.raises(ConfigError, match=r"paradigm: \S+: cluster\.wire: bf16: "):
        check_training(training, training.experiment.make(choice))


def test_a_comparison_leaves_out_what_refuses_it():
    described = SETTINGS | {
        "engine": "virtual",
        "workers": [{"count": 2, "step_s": 1}],
        "network": {"link": {"bandwidth_bytes_per_s": 1e6}},
    }
    with_all_reduce = config.validate(described).paradigms
    without = config.validate(described | {"cluster": BF16}).paradigms
    assert len(without) == len(with_all_reduce) - 1
    assert not any(choice.parameters.get("exchange") for choice in without)
