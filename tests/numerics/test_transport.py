"""What arrives is what was sent."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from raysync.cluster.transport import INLINE_BYTES, incoming, outgoing


@given(st.integers(1, 60_000), st.integers(1, 4))
def test_a_vector_arrives_whole_in_as_many_parts_as_there_are_shards(size, shards):
    vector = torch.arange(size, dtype=torch.float32)
    payloads = outgoing(vector, shards)
    assert len(payloads) == shards
    assert torch.equal(torch.cat(incoming(*payloads)), vector)


@pytest.mark.parametrize(
    ("size", "kind"), [(INLINE_BYTES // 4, bytes), (INLINE_BYTES // 4 + 1, np.ndarray)]
)
def test_only_what_ray_keeps_out_of_its_object_store_is_copied_here(size, kind):
    vector = torch.zeros(size)
    [payload] = outgoing(vector)
    assert isinstance(payload, kind)
    vector[0] = 1
    assert incoming(payload)[0][0] == (0 if kind is bytes else 1)
