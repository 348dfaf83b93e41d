"""Simulate on several processes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

from raysync.errors import RunFailed

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_on(
    processes: int, function: Callable[[Item], Result], items: Sequence[Item]
) -> Iterator[Result]:
    """Yield the result of each item, in their order; with one process, on this one."""
    processes = min(processes, len(items))
    if processes < 2:
        yield from map(function, items)
        return
    with pool(processes) as executor:
        yield from executor.map(function, items)


@contextmanager
def pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes; after the block each one ends once its current task is done.

    Raises:
        RunFailed: a process was lost, by want of memory for example.
    """
    # fresh processes: a fork of one with threads (pyarrow has some) can hang
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, _end_on_ctrl_c) as executor:
        try:
            yield executor
        except BrokenProcessPool as error:
            raise RunFailed("a process of the simulation was lost") from error
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def _end_on_ctrl_c() -> None:
    """Let Ctrl-C end a process of the pool without a traceback."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # unless the command ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
