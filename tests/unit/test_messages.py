"""The messages between the driver and its actors."""

import pytest
from hypothesis import given, strategies as st

from raysync.cluster.actors.evaluator import Evaluator
from raysync.cluster.actors.server import Server
from raysync.cluster.actors.stage_actor import StageActor
from raysync.cluster.actors.worker import Worker
from raysync.engine import messages
from raysync.engine.messages import Message, decode, encode, method_of
from raysync.step_fault import StepFault
from raysync.training.server.apply_plan import ApplyPlan

seconds = st.floats(0, 1e12)
numbers = st.integers(-(2**63), 2**63 - 1)
some = {"max_size": 3}
plans = st.builds(
    ApplyPlan,
    workers=st.lists(st.none() | st.text(), **some),
    samples=st.lists(numbers, **some),
    progress=seconds,
    phase=st.text(),
    staleness=st.lists(numbers, **some),
    version=numbers,
    members=numbers,
    weights=st.lists(seconds, **some),
    replicas=st.lists(numbers, **some),
    combined=st.booleans(),
)
FIELDS = {
    "steps": numbers,
    "data": st.binary(),
    "progress": seconds,
    "progress_of_step": seconds,
    "samples": numbers,
    "batch": numbers,
    "fault": st.builds(StepFault, factor=seconds, latency_s=seconds),
    "plan": plans,
    "publishes": st.booleans(),
    "version": numbers,
    "replica": numbers,
    "worker": st.text(),
    "names": st.lists(st.text(), **some),
    "name": st.text(),
    "is_last": st.booleans(),
}
KINDS = [kind for kind in vars(messages).values() if isinstance(kind, type) and kind is not Message]
KINDS = [kind for kind in KINDS if issubclass(kind, Message)]


@given(st.data(), st.sampled_from(KINDS))
def test_a_message_arrives_as_it_was_sent(data, kind):
    values = {name: data.draw(FIELDS[name]) for name in kind.__struct_fields__}
    message = kind(**values)
    assert decode(encode(message)) == message


@pytest.mark.parametrize("kind", KINDS)
def test_some_actor_has_the_method_of_each_message(kind):
    message = kind(*[None] * len(kind.__struct_fields__))
    actors = [Worker, StageActor, Server, Evaluator]
    assert any(hasattr(actor, method_of(message)) for actor in actors)
