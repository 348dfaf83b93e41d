"""The server actor, without Ray."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from raysync.cluster.actor_errors import ActorError
from raysync.cluster.actors import server as server_module
from raysync.cluster.actors.actor_spec import Role
from raysync.cluster.actors.server import Server
from raysync.cluster.actors.threads import LEAST_ELEMENTS, Threads
from raysync.cluster.transports.shared.segments import Mappings
from raysync.cluster.transports.shared.shared_memory import slots_of
from raysync.config import Update
from raysync.engine.messages import (
    ApplyCall,
    CombineCall,
    PublishCall,
    SavedCall,
    SnapshotCall,
    StatisticsCall,
    encode,
    method_of,
)
from raysync.training.server.apply_plan import MEAN, ApplyPlan
from raysync.training.server.model_server import ModelServer
from raysync.training.server.parameter_store import ParameterStore

PLAN = ApplyPlan(workers=["w#1"], samples=[1], progress=0.0, phase="", staleness=[0], version=1)
GRADIENT = torch.ones(2).numpy()
SPEC = SimpleNamespace(first_server=0, metric_labels=None)
MISSED = "MissedUpdate: the model is at version 1, not at 2"


@pytest.fixture
def server():
    """At version 1."""
    server = Server(Threads(torch.get_num_threads()), Role("server-0"))
    server._model = ModelServer(ParameterStore(torch.zeros(2), 2, Update(lr=1.0)))
    assert server.apply(ApplyCall(PLAN), GRADIENT) == (None, 1)
    return server


def test_an_update_has_the_threads_that_it_is_worth(monkeypatch):
    """Also the half of one that is clipped; several gradients leave cores idle, a single one does
    not.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(server_module, "current_place", lambda devices: None)  # asks Ray
    size, had = 2 * LEAST_ELEMENTS, []

    class Noting(ParameterStore):
        def combine(self, plan, vectors):
            had.append(torch.get_num_threads())
            return super().combine(plan, vectors)

    server = Server(Threads(1, cores=8, servers=2), Role("server-0"))
    kept = Noting(torch.zeros(size), size, Update(lr=1.0))
    monkeypatch.setattr(server_module, "_initial_store", lambda *_: kept)
    server.reset(SPEC, None)
    gradients = [torch.full((size,), number).numpy() for number in (1.0, 3.0)]
    two = replace(PLAN, workers=["v#1", "w#1"], samples=[1, 1], staleness=[0, 0])
    slots, mappings = slots_of(4 * size), Mappings()
    lease = slots.lease()
    server.apply(ApplyCall(two, publishes=True), *gradients, into=lease.handle)
    weights = torch.frombuffer(bytearray(mappings.read(lease.handle)), dtype=torch.float32)
    assert torch.equal(weights, torch.full((size,), -4.0))
    server.combine(CombineCall(replace(PLAN, version=2)), gradients[0])
    assert had == [2, 1]


def test_weights_are_published_at_their_version(server):
    weights, version = server.publish(PublishCall(1, MEAN))
    assert version == 1
    assert torch.frombuffer(bytearray(weights), dtype=torch.float32).tolist() == [-1, -1]


def test_weights_in_shared_memory_stay_as_they_were_published(server):
    slots, mappings = slots_of(8), Mappings()
    first, second = slots.lease(), slots.lease()
    handle, version = server.publish(PublishCall(1, MEAN), into=first.handle)
    assert (handle, version) == (first.handle, 1)
    update = ApplyCall(replace(PLAN, version=2), publishes=True)
    assert server.apply(update, first.handle, into=second.handle)[0] == second.handle
    assert [
        memoryview(mappings.read(each.handle)).cast("f").tolist() for each in (first, second)
    ] == [[-1, -1], [0, 0]]


def test_a_server_that_missed_an_update_refuses_what_comes_after(server):
    for version in (2, 1):  # the second because the first has shown that the model lacks an update
        with pytest.raises(ActorError, match=MISSED):
            server.publish(PublishCall(version, 0))


WRONG = replace(PLAN, version=3)


@pytest.mark.parametrize(
    "message", [ApplyCall(WRONG), ApplyCall(WRONG, publishes=True), CombineCall(WRONG)]
)
def test_an_update_that_is_not_the_next_is_refused_and_everything_after_it(server, message):
    with pytest.raises(ActorError) as raised:
        getattr(server, method_of(message))(encode(message), GRADIENT)
    assert raised.value.reason == MISSED, "signed once"
    for call in (
        lambda: server.apply(ApplyCall(replace(PLAN, version=2)), GRADIENT),
        lambda: server.publish(PublishCall(1, 0)),
        lambda: server._model.forget("w#1"),
    ):
        with pytest.raises(Exception, match=MISSED.partition(": ")[2]):
            call()


def test_a_clipped_update_is_made_in_two_halves(server):
    server._model = ModelServer(ParameterStore(torch.zeros(2), 2, Update(lr=1.0, clip_norm=0.5)))
    norm = server.combine(CombineCall(PLAN), GRADIENT)
    assert norm > 0
    assert server.apply(ApplyCall(replace(PLAN, combined=True)), norm, norm) == (None, 1)
    shared = torch.frombuffer(bytearray(server.publish(PublishCall(1, 0))[0]), dtype=torch.float32)
    assert shared.norm() == pytest.approx(0.5 / 2**0.5), "its part of the norm of the two"


def test_a_new_server_goes_on_from_a_snapshot_that_keeps_vectors_too(monkeypatch, server):
    monkeypatch.setattr(server_module, "current_place", lambda devices: None)  # asks Ray
    data, version = server.snapshot(SnapshotCall(["pushed"], 1), GRADIENT)
    assert version == 1
    kept = ParameterStore(torch.zeros(2), 2, Update(lr=1.0))
    monkeypatch.setattr(server_module, "_initial_store", lambda *_: kept)
    other = Server(Threads(torch.get_num_threads()), Role("server-0"))
    other.reset(SPEC, None, data)
    assert other.publish(PublishCall(1, MEAN)) == server.publish(PublishCall(1, MEAN))
    assert other.saved(SavedCall("pushed"))[0] == GRADIENT.tobytes()
    with pytest.raises(ActorError, match=MISSED):
        server.snapshot(SnapshotCall([], 2))


def test_the_buffers_of_a_worker_are_at_the_end_of_a_vector(server):
    server._model = ModelServer(ParameterStore(torch.zeros(2), 1, Update(lr=1.0)))
    server.apply(ApplyCall(PLAN), np.array([3, 7], np.float32))
    for worker, buffer in (("w#1", 7), ("v#1", 0)):
        vector, _ = server.statistics(StatisticsCall(worker))
        assert vector == np.array([0, buffer], np.float32).tobytes()
