"""What arrives is what was sent."""

import numpy as np
import pytest
import torch

from raysync.cluster.transports.payloads import INLINE_BYTES, incoming, outgoing


@pytest.mark.parametrize(
    ("size", "kind"), [(INLINE_BYTES // 4, bytes), (INLINE_BYTES // 4 + 1, np.ndarray)]
)
def test_only_what_ray_keeps_out_of_its_object_store_is_copied_here(size, kind):
    vector = torch.zeros(size)
    [payload] = outgoing(vector)
    assert isinstance(payload, kind)
    vector[0] = 1
    assert incoming(payload)[0][0] == (0 if kind is bytes else 1)
