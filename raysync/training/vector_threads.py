"""Threads that share the work on long flat vectors, each on a span of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from raysync.training.vector_parts import spans

LEAST = 2**20
"""The least elements that are worth a thread of their own. Waking a thread and waiting for it takes
a tenth of a millisecond, three times an update: with half as many elements for each of two threads
nothing is gained."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class VectorThreads:
    """Work on vectors, elementwise, in as many threads as their length is worth.

    torch's kernels let other threads of Python go on meanwhile. Its own threads would do the same
    work, but they spin while they wait for one another: where they have to share a core with other
    processes, such as workers, an operation takes many times as long as with one of them. These
    here block, and the caller is one of them: it does all the work that no other begins in time.
    None is started before it is needed, and they end with this object.

    How many there are depends on the update. The workers of several gradients wait at a barrier
    while these are applied; that of a single one waits alone, and the others compute on. These
    would pay for what is not free: of a gradient of 2.5 M numbers two threads make a quarter more
    work than one.

    Spans end where a block of `vector_parts` does, so that the results have the bits that one
    thread makes.
    """

    def __init__(self, count: int = 1, fair: int = 1, least: int = LEAST) -> None:
        """
        Args:
            count: the most threads, with the caller's.
            fair: the most of them for an update of one gradient.
            least: the least elements of a span.
        """
        self._count, self._fair, self._least = count, fair, least
        self._most = count
        """The most for the present update."""
        self._pool: ThreadPoolExecutor | None = None
        if count > 1:
            self._pool = ThreadPoolExecutor(count - 1, "vector", _use_one_thread)

    def enter(self, gradients: int) -> None:
        """Begin an update of so many gradients."""
        self._most = self._count if gradients > 1 else min(self._fair, self._count)

    def spans(self, size: int) -> list[slice]:
        """Return the spans of a vector of that size, one for each thread that may work on it."""
        shared = min(self._count, size // self._least)
        return spans(size, shared) if shared > 1 else [slice(0, size)]

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return what the work returns for each of the items, in their order.

        Raises:
            Exception: one that the work has raised, once no thread works any more.
        """
        others = min(self._most, len(items)) - 1
        if self._pool is None or others < 1:
            return [work(item) for item in items]
        waiting, results = deque(enumerate(items)), {}

        def take_turns() -> None:
            while True:
                try:
                    index, item = waiting.popleft()  # which lets no other thread in between
                except IndexError:
                    return
                results[index] = work(item)

        futures = [self._pool.submit(take_turns) for _ in range(others)]
        try:
            with _one_thread():
                take_turns()
        finally:
            begun = [future for future in futures if not future.cancel()]
            wait(begun)
        for future in begun:
            future.result()
        return [results[index] for index in range(len(items))]

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Copy a vector into another one, which may be on another device."""
        shared = self.spans(len(source))
        if len(shared) > 1 and source.device.type == target.device.type == "cpu":
            self.map(lambda span: target[span].copy_(source[span]), shared)
        else:
            target.copy_(source)


def _use_one_thread() -> None:
    """Let torch compute with one thread in the present one, from now on."""
    torch.get_num_threads()  # the first call takes the number of the latest thread that set one
    torch.set_num_threads(1)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute with one thread in the present one."""
    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)
