"""The messages between the driver and its actors."""

import pytest
from hypothesis import given, settings, strategies as st

from raysync.engine.messages import MESSAGES, decode, encode
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


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(st.data())
def test_a_message_arrives_as_it_was_sent(kind, data):
    values = {name: data.draw(FIELDS[name]) for name in kind.__struct_fields__}
    message = kind(**values)
    assert decode(encode(message)) == message
