"""What every transport must do: the same stories for all, and for one that only the tests have."""

from dataclasses import replace

import psutil
import pytest
import torch
from hypothesis import given, settings, strategies as st

from raysync.cluster import session as session_module
from raysync.cluster.transports.choose import choose
from raysync.cluster.transports.object_store import ObjectStorePlan
from raysync.cluster.transports.payloads import forget_run, incoming
from raysync.cluster.transports.shared.device_vector import device_mappings
from raysync.cluster.transports.shared.planning import ON_GPU
from raysync.cluster.transports.shared.shared_memory import SharedPlan
from raysync.cluster.transports.transport import Sites, Writers
from raysync.core.journal import Remark
from raysync.engine.messages import ApplyCall, ForgetCall, PublishCall, StepCall
from tests.builders.cluster import lines_of, pid_of, same_model
from tests.builders.requests import request
from tests.fakes import libcuda
from tests.fakes.file_transport import NAME, FilePlan

STEP, PUBLISH = StepCall(0, 8), PublishCall(0, 0)
PLANS = {
    "object-ref": lambda folder: ObjectStorePlan(),
    "shared-memory": lambda folder: SharedPlan("here", shares_weights=True),
    "part of it shared": lambda folder: SharedPlan("here", shares_weights=False),
    ON_GPU: lambda folder: SharedPlan("here", shares_weights=True, gpu=libcuda.GPU),
    NAME: FilePlan,
}


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    """What the driver of this process has; actors install their own."""
    yield libcuda.install(monkeypatch.setattr)
    device_mappings().clear()


@pytest.fixture(params=PLANS)
def plan(request, tmp_path):
    return PLANS[request.param](tmp_path)


def begun(plan, before=None):
    """A run of two workers and two shards, whose vectors have 5 and 7 numbers."""
    device_mappings().clear()  # as each actor does before
    run = plan.begin(Writers(28, 20, {"a#1": "A", "b#1": "B"}, ["S", "T"]), before)
    forget_run()  # as the controller does
    return run


def room_for_all(transport):
    return [
        *transport.reserve("a#1", STEP, "here"),
        *transport.reserve("b#1", STEP, "here"),
        *transport.reserve("server", PUBLISH, None),
        *transport.reserve("server", ApplyCall(None, publishes=True), None),
    ]


def write(leases):
    """Write another number into each, of the size that it has room for."""
    for number, lease in enumerate(leases):
        with lease.handle.writing() as vector:
            vector.fill_(number)


def values(leases):
    return [set(each.tolist()) for each in incoming(*(lease.handle for lease in leases))]


def test_nothing_that_is_held_is_written_over(plan):
    transport = begun(plan)
    held = room_for_all(transport)
    write(held)
    expected = [{float(number)} for number in range(len(held))]
    assert values(held) == expected
    write(room_for_all(transport))  # what was lent meanwhile, and given back
    transport.forget("a#1", "it was ended")
    transport.restart("server", "it is restarted")
    write(room_for_all(transport))
    assert values(held) == expected


def test_segments_hold_a_gradient_and_the_parts_of_the_weights(plan):
    transport = begun(plan)
    for actor, node in (("a#1", "here"), ("b#1", "here")):
        assert [len(v) for v in sizes(transport.reserve(actor, STEP, node))] in ([], [5])
    assert [len(v) for v in sizes(transport.reserve("server", PUBLISH, None))] in ([], [4, 3])
    assert transport.reserve("server", ForgetCall("a#1"), None) == ()
    assert transport.reserve("server", ApplyCall(None), None) == ()


def sizes(leases):
    for lease in leases:
        with lease.handle.writing() as vector:
            yield vector


@pytest.mark.parametrize("name", ["shared-memory", ON_GPU, NAME])
@settings(max_examples=25)
@given(st.data())
def test_the_parts_of_a_vector_are_those_of_a_tensor(name, tmp_path_factory, data):
    plan = PLANS[name](tmp_path_factory.mktemp("vectors"))
    cuts = sorted(data.draw(st.lists(st.integers(0, 5), max_size=3)))
    lengths = [end - begin for begin, end in zip([0, *cuts], [*cuts, 5], strict=True)]
    [lease] = begun(plan).reserve("a#1", STEP, "here")
    whole = torch.arange(5.0)
    with lease.handle.writing() as vector:
        vector.copy_(whole)
    parts = incoming(*lease.handle.parts(lengths))
    assert [part.tolist() for part in parts] == [part.tolist() for part in whole.split(lengths)]


def test_a_call_that_only_ray_can_carry_is_left_to_ray(plan):
    transport = begun(plan)
    transport.attach(lambda reference: None)
    assert transport.call(request(ForgetCall("a#1"))) is None
    transport.close()


# ---- whole runs, on Ray ----


@pytest.fixture(params=["object-ref", "shared-memory", ON_GPU, NAME])
def cluster(request, monkeypatch, tmp_path):
    """The settings of a cluster with that transport."""
    if request.param == ON_GPU:
        if request.getfixturevalue("shards") > 1:
            pytest.skip("a GPU has one server")
        monkeypatch.setattr(session_module, "choose", choose_gpu)
        return {}
    if request.param != NAME:
        return {"transport": request.param}
    folder = tmp_path / "vectors"
    folder.mkdir()

    def choose(spec, sites: Sites, node):
        shown = dict.fromkeys([*sites.workers, *sites.servers, "evaluator"], NAME)
        return FilePlan(folder, shown), []

    monkeypatch.setattr(session_module, "choose", choose)
    return {}


def choose_gpu(spec, sites, node):
    """Choose as for a server on a GPU; actors have the fake by their model, or get it here."""
    node.run(libcuda.install_once, "controller")
    cluster = spec.experiment.cluster.model_copy(update={"server_gpus": 0.1})
    asked = spec.experiment.model_copy(update={"cluster": cluster})
    return choose(replace(spec, experiment=asked), sites, node)


LONG = {
    "paradigm": "bsp",
    "workers": [{"name": "fast", "count": 3, "step_s": 0.03}],
    "workload": {"samples": 2400},
    "update": {"lr": 0.05, "momentum": 0.9},
}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2])
def test_a_run_comes_to_the_same_model_whichever_shard_it_loses(
    ray_cluster, run, cluster, shards, tmp_path
):
    """Bit by bit, without any checkpoint; and nothing is held for good."""
    model = libcuda.Installing()
    undisturbed = run(
        model, **LONG, cluster={"server_shards": shards}, output=str(tmp_path / "before")
    )

    def kill(shard):
        return lambda group: psutil.Process(pid_of(ray_cluster, group.servers[shard])).kill()

    more = {"server_shards": shards, "restarts": {"backoff_s": 0.1}, "server_log_bytes": 2**18}
    record = run(
        model,
        **LONG,
        cluster=cluster | more,
        strikes={0.2: kill(1), 0.6: kill(0)} if shards == 2 else {0.4: kill(0)},
    )
    assert record.summary["status"] == "finished"
    remarks = lines_of(record, Remark)
    assert [line.text.startswith("server was lost") for line in remarks] == [True] * shards
    assert same_model(record, undisturbed)
    assert record.summary["samples"] == undisturbed.summary["samples"]
    files = list((tmp_path / "vectors").glob("*"))
    assert len(files) < 100, "leases end"
    if not cluster:
        places = record.environment["places"]
        assert {place["transport"] for place in places.values()} in ({NAME}, {ON_GPU})
