"""What arrives is what was sent."""

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from raysync.cluster.transports.payloads import INLINE_BYTES, incoming, outgoing


@given(st.lists(st.integers(0, 40_000), max_size=4))
def test_a_vector_arrives_whole_in_parts_of_the_sizes_that_are_asked_for(sizes):
    vector = torch.arange(sum(sizes), dtype=torch.float32)
    parts = incoming(*outgoing(vector, sizes))
    assert [len(part) for part in parts] == (sizes or [0])
    assert torch.equal(torch.cat(parts), vector)


@pytest.mark.parametrize(
    ("size", "kind"), [(INLINE_BYTES // 4, bytes), (INLINE_BYTES // 4 + 1, np.ndarray)]
)
def test_only_what_ray_keeps_out_of_its_object_store_is_copied_here(size, kind):
    vector = torch.zeros(size)
    [payload] = outgoing(vector)
    assert isinstance(payload, kind)
    vector[0] = 1
    assert incoming(payload)[0][0] == (0 if kind is bytes else 1)
