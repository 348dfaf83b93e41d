"""The server's actor, without Ray."""

import os

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from raysync.cluster.actor_errors import ActorError
from raysync.cluster.actors.server_actor import Server
from raysync.cluster.actors.threads import LEAST_ELEMENTS, Threads
from raysync.cluster.transports.payloads import incoming, outgoing
from raysync.cluster.transports.shared.segments import Mappings
from raysync.cluster.transports.shared.shared_memory import slots_of
from raysync.config import Update
from raysync.engine.messages import (
    ApplyCall,
    CombineCall,
    ForgetCall,
    PublishCall,
    SavedCall,
    SnapshotCall,
    StatisticsCall,
)
from raysync.programs.server import ServerProgram
from raysync.training.server.apply_plan import MEAN
from raysync.training.server.parameter_store import ParameterStore
from tests.builders.actors import BareShell, begun
from tests.builders.messages import tells
from tests.builders.updates import update_plan

DIGITS = {"data": {"name": "digits", "train_samples": 100}, "workers": [{"count": 2}]}
PLAN = update_plan([1])
NEXT, WRONG = replace(PLAN, version=2), replace(PLAN, version=3)
GRADIENT = outgoing(torch.ones(2))


def fresh(buffers=0, **update):
    """A server of two numbers, the last of which are buffers."""
    store = ParameterStore(torch.zeros(2), 2 - buffers, Update(lr=1.0, **update))
    return BareShell(ServerProgram(store))


@pytest.fixture
def server():
    """At version 1."""
    server = fresh()
    assert server.execute(ApplyCall(PLAN), GRADIENT) == ([], 1)
    return server


def published(server, version=1):
    (weights,), at = server.execute(PublishCall(version, MEAN), ())
    assert at == version
    return incoming(weights)[0]


class Large(nn.Linear):
    """Its vector is worth two threads."""

    def __init__(self):
        super().__init__(64, 10)
        self.more = nn.Parameter(torch.zeros(2 * LEAST_ELEMENTS))

    def forward(self, x):
        return super().forward(x.flatten(1))


@pytest.mark.usefixtures("one_thread")
def test_an_update_has_the_threads_that_it_is_worth(monkeypatch):
    """Also the half of one that is clipped; several gradients leave cores idle, a single one does
    not.
    """
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    combine, had = ParameterStore.combine, []

    def combining(*arguments):
        had.append(torch.get_num_threads())
        return combine(*arguments)

    monkeypatch.setattr(ParameterStore, "combine", combining)
    threads = Threads(1, cores=8, servers=2)
    server, training = begun(monkeypatch, Server, DIGITS, threads=threads, model=Large())
    gradient = outgoing(torch.zeros(training.vector_bytes // 4))
    server.execute(ApplyCall(update_plan([1, 1])), gradient * 2)
    server.execute(CombineCall(NEXT), gradient)
    assert had == [2, 1]


def test_weights_are_published_at_their_version(server):
    assert published(server).tolist() == [-1, -1]


def test_weights_in_shared_memory_stay_as_they_were_published(server):
    slots, mappings = slots_of(8), Mappings()
    first, second = slots.lease(), slots.lease()
    assert server.execute(PublishCall(1, MEAN), (), first.handle) == ([first.handle], 1)
    update = ApplyCall(NEXT, publishes=True)
    assert server.execute(update, [first.handle], second.handle) == ([second.handle], 2)
    assert [
        memoryview(mappings.read(each.handle)).cast("f").tolist() for each in (first, second)
    ] == [[-1, -1], [0, 0]]


@pytest.mark.parametrize(
    ("message", "inputs"),
    [
        (PublishCall(2, 0), ()),
        (SnapshotCall([], 2), ()),
        (ApplyCall(WRONG), GRADIENT),
        (ApplyCall(WRONG, publishes=True), GRADIENT),
        (CombineCall(WRONG), GRADIENT),
    ],
)
def test_a_server_that_missed_an_update_refuses_everything_after_it(server, message, inputs):
    """The message shows that the model lacks an update."""
    for each, vectors in (
        (message, inputs),
        (ApplyCall(NEXT), GRADIENT),
        (PublishCall(1, 0), ()),
        (StatisticsCall("w-0#1"), ()),
        (ForgetCall("w-0#1"), ()),
    ):
        with pytest.raises(ActorError) as raised:
            server.execute(each, vectors)
        assert raised.value.reason.startswith("MissedUpdate: "), "signed once"
        assert tells(raised.value.reason, "1 2")


def test_a_clipped_update_is_made_in_two_halves():
    server = fresh(clip_norm=0.5)
    [norm], _ = server.execute(CombineCall(PLAN), GRADIENT)
    assert norm > 0
    combined = ApplyCall(replace(PLAN, combined=True))
    assert server.execute(combined, [norm, norm]) == ([], 1)
    shared = published(server).norm().item()
    assert shared == pytest.approx(0.5 / 2**0.5), "its part of the norm of the two"


def test_a_new_server_goes_on_from_a_snapshot_that_keeps_vectors_too(monkeypatch):
    server, training = begun(monkeypatch, Server, DIGITS)
    gradient = torch.arange(training.vector_bytes / 4)
    server.execute(ApplyCall(PLAN), outgoing(gradient))
    (data,), version = server.execute(SnapshotCall(["pushed"], 1), outgoing(gradient))
    assert version == 1
    other, _ = begun(monkeypatch, Server, DIGITS, state=[data])
    assert torch.equal(published(other), published(server))
    [kept], _ = other.execute(SavedCall("pushed"), ())
    assert torch.equal(incoming(kept)[0], gradient)
    with pytest.raises(ActorError):
        other.execute(SavedCall("pushed"), ())


def test_the_buffers_of_a_worker_are_at_the_end_of_a_vector():
    server = fresh(buffers=1)
    server.execute(ApplyCall(PLAN), outgoing(torch.tensor([3.0, 7.0])))
    for worker, buffer in (("w-0#1", 7), ("v#1", 0)):
        [vector], _ = server.execute(StatisticsCall(worker), ())
        assert incoming(vector)[0].tolist() == [0, buffer]
