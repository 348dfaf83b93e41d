"""The remote of a vector in shared memory, or on a GPU that the controller lends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from raysync.cluster.transports.shared.segments import Handle, Mappings
from raysync.cluster.transports.transport import BETWEEN_RUNS, InPlace

if TYPE_CHECKING:
    from torch import Tensor


class SharedVector(Handle):
    __slots__ = ()

    def read(self) -> Tensor:
        """Return the vector, read-only.

        Raises:
            TornVector: the vector is not there.
            OSError: the owning process is gone, or is on another machine.
        """
        tensor: Tensor = self._mappings.read(self)
        return tensor

    @contextmanager
    def writing(self) -> Iterator[Tensor]:
        yield self._mappings.begin_write(self)
        self._mappings.finish_write(self)

    def in_place(self, vector_bytes: int) -> InPlace | None:
        if self.on_gpu:
            return None
        # imported here: the driver, which only passes handles on, does without torch
        from raysync.cluster.transports.shared.in_place import WeightsInPlace, is_large_enough

        return WeightsInPlace(mappings(), vector_bytes) if is_large_enough(vector_bytes) else None

    @property
    def _mappings(self) -> Mappings:
        if not self.on_gpu:
            return mappings()
        from raysync.cluster.transports.shared.device_vector import device_mappings

        return device_mappings()


@cache
def mappings() -> Mappings:
    """Return this process's mappings, as tensors; they last, so the next run reuses them."""
    import numpy as np
    import torch

    from raysync.cluster.transports.shared.registered_map import RegisteredMap

    created = Mappings(
        lambda data: torch.from_numpy(np.frombuffer(data, np.float32)), RegisteredMap
    )
    BETWEEN_RUNS.append(created.drop_closed)
    return created
