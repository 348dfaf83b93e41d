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


WITHOUT_MODEL = {"vector_bytes": 100, "link": {"bandwidth_bytes_per_s": 100}}
"""Of 100 bytes, 25 numbers, 13 pairs are sent."""


@pytest.mark.parametrize(
    ("network", "times"),
    [
        ({"link": {"bandwidth_bytes_per_s": BYTES}}, [2.5, 5, 7.5]),
        ({"server_bandwidth_bytes_per_s": BYTES}, [2.5, 5, 7.5]),
        ({"update_bytes_per_s": BYTES}, [1, 2.5, 4]),
        (WITHOUT_MODEL, [2.52, 5.04, 7.56]),
    ],
    ids=["link", "server's link", "update", "without a model"],
)
def test_a_push_takes_half_the_time_of_a_pull(network, times):
    """And a server reads half the bytes, which the worker waits for."""
    settings = {"workers": [{"step_s": 1}], "workload": {"samples": 3}, "cluster": BF16}
    settings |= TIMING | {"network": network}
    is_sized = network is WITHOUT_MODEL
    training = prepare(config.validate(settings)) if is_sized else timed(**settings)
    assert push_times(run(training, "asp")) == {"worker-0": pytest.approx(times)}


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
