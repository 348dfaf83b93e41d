"""Gradients in bfloat16 on their way: against closed forms, and against float32 that was rounded
before.
"""

import numpy as np
import pytest
import torch
from torch import nn

from raysync import config
from raysync.cluster.transports.payloads import INLINE_BYTES, incoming, outgoing
from raysync.config import ParadigmChoice, Update
from raysync.decoupled.plan import check_training
from raysync.errors import ConfigError
from raysync.training.preparation import prepare
from raysync.training.server.parameter_store import ParameterStore
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


@pytest.mark.parametrize(
    ("size", "kind"), [(INLINE_BYTES // 4, bytes), (INLINE_BYTES // 4 + 1, np.ndarray)]
)
def test_only_what_ray_keeps_out_of_its_object_store_is_copied_here(size, kind):
    vector = torch.zeros(size)
    [payload] = outgoing(vector)
    assert isinstance(payload, kind)
    vector[0] = 1
    assert incoming(payload)[0][0] == (0 if kind is bytes else 1)
