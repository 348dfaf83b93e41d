"""A parameter server counts its updates: no model that it publishes lacks one unnoticed."""

import pytest
import torch
from msgspec.structs import replace

from raysync.config import Update
from raysync.training.server.apply_plan import MEAN, ApplyPlan
from raysync.training.server.model_server import MissedUpdate, ModelServer
from raysync.training.server.parameter_store import ParameterStore

PLAN = ApplyPlan(workers=["w"], samples=[1], progress=0.0, phase="", staleness=[0], version=1)
GRADIENT = torch.ones(2)


@pytest.fixture
def server():
    server = ModelServer(ParameterStore(torch.zeros(2), 2, Update(lr=1.0)))
    assert server.apply(PLAN, [GRADIENT]) == 1
    return server


@pytest.mark.parametrize(
    "call",
    [
        lambda server: server.publish(2, 0),
        lambda server: server.publish(0, MEAN),
        lambda server: server.apply(replace(PLAN, version=3), [GRADIENT]),
        lambda server: server.apply(PLAN, [GRADIENT]),
        lambda server: server.combine(replace(PLAN, version=3), [GRADIENT]),
    ],
)
def test_a_server_that_missed_an_update_refuses_what_comes_after(server, call):
    """Also what would fit: the call before it has shown that the model lacks an update."""
    assert server.publish(1, 0).tolist() == [-1.0, -1.0]
    for again in (call, lambda server: server.publish(1, 0), lambda server: server.forget("w")):
        with pytest.raises(MissedUpdate, match=r"the model is at version 1, not at \d"):
            again(server)


def test_an_update_that_raises_is_told_by_every_later_call(server):
    broken = (AttributeError, TypeError)
    with pytest.raises(broken) as first:
        server.apply(replace(PLAN, version=2), [None])
    for call in (
        lambda: server.publish(1, 0),
        lambda: server.apply(replace(PLAN, version=2), [GRADIENT]),
    ):
        with pytest.raises(broken) as later:
            call()
        assert later.value is first.value


def test_halves_of_an_update_are_one_update(server):
    """As shards make them, which tell each other their norms in between."""
    half = replace(PLAN, version=2)
    norm = server.combine(half, [GRADIENT])
    assert server.apply(replace(half, combined=True), [norm]) == server.version == 2
    assert server.publish(2, MEAN).tolist() == [-2.0, -2.0]
