"""Fill the object stores of a cluster for a while, as a neighbour of the run might.

On each node an actor puts objects until none fits, and maps them all, so that Ray can neither evict
them nor write them to disk.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray
from ray.exceptions import ObjectStoreFullError, OutOfDiskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

FULL_S = 5.0
"""How long they stay full."""
OBJECTS_BYTES = (2**24, 2**20, 2**17)
"""The sizes of the objects: large ones as long as they fit, then smaller ones."""
FILL_S = 60.0
"""How long filling them may take."""


class FullStores:
    """The stores of a cluster, as a context manager: they are full within."""

    def __init__(self, address: str, nodes: Sequence[str]) -> None:
        """
        Args:
            address: of a cluster whose stores do not go on to disk.
            nodes: Ray's ids of those of its nodes that are there. Ray itself learns only after some
                seconds that one is lost.
        """
        self._address, self._nodes = address, nodes
        self._fillers: list[Any] = []
        self.filled_bytes = 0

    def __enter__(self) -> FullStores:
        ray.init(address=self._address, logging_level=logging.ERROR, log_to_driver=False)
        filler = ray.remote(num_cpus=0)(_Filler)
        self._fillers = [
            filler.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, False)).remote()
            for node in self._nodes
        ]
        filled = ray.get([each.fill.remote() for each in self._fillers], timeout=FILL_S)
        self.filled_bytes = sum(filled)
        return self

    def __exit__(self, *_: object) -> None:
        self._fillers.clear()
        ray.shutdown()


class _Filler:
    """An actor."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    def fill(self) -> int:
        """Fill the store of this node; return how many bytes that took."""
        for size in OBJECTS_BYTES:
            while True:
                try:
                    reference = ray.put(np.zeros(size, np.uint8))
                except (ObjectStoreFullError, OutOfDiskError):
                    break
                self._held.append((reference, ray.get(reference)))
        return sum(array.nbytes for _, array in self._held)
