"""Codecs of pushes: what they lose, what error feedback gives back, and what runs learn."""

from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

import raysync
from raysync import config
from raysync.cluster.transports.payloads import incoming, outgoing
from raysync.config import Update
from raysync.errors import ConfigError
from raysync.training.preparation import prepare
from raysync.training.server.parameter_store import ParameterStore
from raysync.training.vectors.codecs import BLOCK, LEVELS, codec_of
from raysync.training.vectors.parts import spans
from raysync.training.vectors.wire import Wire, gradient_of
from raysync.training.worker.computation import WorkerComputation
from raysync.training.worker.gradient import GradientComputation
from raysync.virtual.engine import driver_of
from tests.builders.messages import naming
from tests.builders.updates import update_plan
from tests.builders.virtual import DATA, interrupted, learn, push_times, run, weights_of

pytestmark = pytest.mark.usefixtures("one_thread")

CODECS = ["bf16", "int8", "top-k"]


def vector_of(size, seed, spread=1.0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=draw) * torch.exp(spread * torch.randn(size, generator=draw))


def there_and_back(name, vector, seed=0, fraction=0.1):
    codec = codec_of(name, fraction)
    out = torch.full((codec.encoded_size(len(vector)),), float("nan"))
    codec.encode(vector, out, seed)
    return codec.decode(out, len(vector)).float(), out


sizes = st.sampled_from([1, 3, 4, 5, 1023, 1024, 1025, 3000])


@given(sizes, st.integers(0, 99), st.floats(0, 3))
def test_int8_is_off_by_less_than_a_level_and_right_on_the_mean(size, seed, spread):
    vector = vector_of(size, seed, spread)
    came, out = there_and_back("int8", vector, seed)
    blocks = torch.nn.functional.pad(vector, (0, -size % BLOCK)).view(-1, BLOCK)
    level = (blocks.abs().amax(1, keepdim=True) / LEVELS).expand_as(blocks).reshape(-1)[:size]
    assert ((came - vector).abs() <= level * (1 + 1e-5)).all()
    again, _ = there_and_back("int8", vector, seed)
    assert torch.equal(came, again)
    assert len(out) == ceil(size / BLOCK) + ceil(size / 4)


def test_rounding_at_random_has_no_bias():
    vector = vector_of(500, 1)
    mean = torch.stack([there_and_back("int8", vector, seed)[0] for seed in range(2000)]).mean(0)
    level = vector.abs().max() / LEVELS
    # the mean of 2,000 draws, each off by at most a level: six of its standard deviations
    assert ((mean - vector).abs() < 6 * level / 2 / 2000**0.5).all()


@pytest.mark.parametrize("local", [None, {"steps": 2, "lr": 0.1}])
def test_each_push_is_rounded_with_draws_of_its_own(local):
    """Which are those of its batch: equal on both engines, and after a resumption."""
    training = task("int8", nn.Sequential(nn.Linear(3, 99), nn.Linear(99, 4)), local=local)
    gradient = GradientComputation(training.build(), training.task, wire="int8")
    worker, reader = WorkerComputation(gradient, training.experiment), training.reader("a-0")
    vector, pushes = vector_of(gradient.model.size, 0), []
    for first in (0, 2, 4, 0):
        worker.compute(reader, first, 2 if local else 1, 8)
        gradient.residual = None
        gradient.model.gradient.copy_(vector)
        pushes.append(bytes(gradient.outgoing().numpy()))
    assert len(set(pushes)) == 3
    assert pushes[3] == pushes[0]


@given(sizes, st.integers(0, 99), st.sampled_from([0.001, 0.1, 0.5, 1.0]))
def test_top_k_sends_the_largest_as_they_are(size, seed, fraction):
    vector = vector_of(size, seed)
    came, out = there_and_back("top-k", vector, fraction=fraction)
    count = max(1, ceil(fraction * size))
    sent = came != 0
    assert int(sent.sum()) == count
    assert torch.equal(came[sent], vector[sent])
    assert count == size or vector[sent].abs().min() >= vector[~sent].abs().max()
    assert len(out) == 2 * count


@given(
    st.sampled_from(CODECS),
    st.integers(1, 60),
    st.integers(0, 12),
    st.integers(1, 5),
    st.integers(1, 6),
)
def test_with_error_feedback_nothing_is_lost(name, parameters, buffers, shards, pushes):
    """The sum of what has come, and what is still kept, is the sum of what was to be sent."""
    wire = Wire(name, parameters, buffers, shards, fraction=0.2)
    residual, came, sent = torch.zeros(parameters), torch.zeros(parameters), 0
    for push in range(pushes):
        vector = vector_of(parameters + buffers, push)
        encoded = wire.encode(vector, residual=residual, seed=push)
        parts = incoming(*outgoing(encoded, wire.sizes))
        for span, part in zip(spans(parameters + buffers, shards), parts, strict=True):
            begin, end = min(span.start, parameters), min(span.stop, parameters)
            rest = span.stop - span.start - (end - begin)
            came[begin:end] += gradient_of(name, part, end - begin, rest).float()
        assert torch.equal(wire.decode(encoded)[parameters:], vector[parameters:])
        sent = sent + vector[:parameters]
    torch.testing.assert_close(came + residual, sent, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "update",
    [
        {"momentum": 0.9, "weight_decay": 0.1},
        {"clip_norm": 0.5},
        {"optimizer": "adamw", "lr": 0.01},
        {"optimizer": "rmsprop", "lr": 0.01},
        {"delay_compensation": {"name": "adaptive"}, "staleness_scaling": "inverse"},
    ],
)
@pytest.mark.parametrize("name", CODECS)
def test_what_is_added_and_stepped_on_is_in_float32(name, update):
    """Bit by bit as if the decoded vectors had come; what has come is not written to."""
    size, buffers, draw = 1030, 3, torch.Generator().manual_seed(0)
    wire, compensates = Wire(name, size, buffers), "delay_compensation" in update
    initial = torch.randn(size + buffers, generator=draw)
    own, plain = (
        ParameterStore(initial, size, Update(**update), wire=each) for each in (name, "float32")
    )
    for version in range(6):
        pushes = 1 + version % 3
        vectors = [torch.randn(size + buffers, generator=draw) for _ in range(pushes)]
        bases = [torch.randn(size + buffers, generator=draw) for _ in range(pushes * compensates)]
        plan = update_plan([8, 3, 5][:pushes], progress=0.1, staleness=[1, 3, 2][:pushes])
        arrived = [wire.encode(vector, seed=version).clone() for vector in vectors]
        kept = [each.clone() for each in arrived]
        decoded = [gradient_of(name, each, size, buffers).float() for each in arrived]
        own.apply(plan, [*arrived, *bases])
        buffered = zip(decoded, vectors, strict=True)
        plain.apply(plan, [*(torch.cat([d, vector[size:]]) for d, vector in buffered), *bases])
        for before, after in zip(kept, arrived, strict=True):
            assert torch.equal(before.view(torch.int32), after.view(torch.int32))
        assert torch.equal(own.publish(), plain.publish())
    assert own.version == 6


def net():
    return nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def task(wire, model=net, data=DATA, **others):
    settings = {
        "engine": "virtual",
        "batch_size": 8,
        "workers": [{"name": "a", "step_s": 1}, {"name": "b", "step_s": 1.6}],
        "workload": {"samples": 640},
        "update": {"lr": 0.1},
        "cluster": {"wire": wire},
        "evaluation": {"marks": 1},
    }
    return prepare(config.validate(settings | others), model, data)


def test_error_feedback_makes_up_for_what_top_k_leaves_out():
    """At the same rate it comes closer to plain SGD than the same codec without."""
    plain = weights_of(learn(task("float32"), "asp")[1])
    off = {}
    for feedback in (True, False):
        wire = {"name": "top-k", "fraction": 0.05, "feedback": feedback}
        off[feedback] = (weights_of(learn(task(wire), "asp")[1]) - plain).norm().item()
    assert off[True] < 0.5 * off[False]


@pytest.mark.parametrize("name", ["int8", "top-k"])
@pytest.mark.parametrize("local", [None, {"steps": 4, "lr": 0.1}])
def test_a_run_with_a_codec_is_the_same_each_time_and_goes_on_from_a_checkpoint(name, local):
    training = task(name, local=local, checkpoint={"every_progress": 0.3})
    weights = [weights_of(learn(training, "bsp")[1]) for _ in range(2)]
    assert torch.equal(*weights)
    choice = training.experiment.paradigm
    _, checkpoint = interrupted(training, choice, 20)
    again = driver_of(training, training.make(choice), checkpoint)
    assert [*again.run()]
    assert torch.equal(weights_of(again), weights[0])


WIDE = np.zeros((8, 255)), np.arange(8) % 4


def test_bytes_are_those_that_travel():
    """A push of 1,024 numbers and a link of a kB/s: seconds are bytes."""
    link = {"latency_s": 0.0, "bandwidth_bytes_per_s": 1000}
    once = {"workers": [{"step_s": 1, "link": link}], "workload": {"samples": 1}, "batch_size": 1}
    data, seconds = raysync.data_set("wide", WIDE, WIDE), []
    for wire in ("float32", "bf16", "int8", {"name": "top-k", "fraction": 0.125}):
        training = task(wire, nn.Linear(255, 4), data, timing="only", **once)
        [[at]] = push_times(run(training)).values()
        seconds.append(at - 1 - 4.096)
    assert seconds == pytest.approx([4.096, 2.048, 1.028, 1.024])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cluster": {"wire": "int4"}}, "cluster.wire"),
        ({"cluster": {"wire": {"name": "top-k", "fraction": 0}}}, "fraction"),
        ({"cluster": {"wire": {"name": "int8", "fraction": 0.1}}}, "fraction top-k"),
        ({"cluster": {"wire": {"name": "float32", "feedback": True}}}, "feedback"),
        (
            {"cluster": {"wire": "int8"}, "update": {"combine": "sum", "lr_scaling": "none"}},
            "combine: sum int8",
        ),
    ],
)
def test_what_a_codec_cannot_do_is_refused_by_name(changes, says):
    with pytest.raises(ConfigError, match=naming(says)):
        config.validate(changes)
