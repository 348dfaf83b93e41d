"""A pool of fresh processes that simulate."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from raysync.errors import RunFailed


@contextmanager
def pool(
    processes: int, prepare: Callable[..., None] | None = None, *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """Start processes; after the block each one ends once its current task is done.

    Args:
        processes: their number.
        prepare: called with the arguments in each process first.

    Raises:
        RunFailed: a process was lost, by want of memory for example.
    """
    # fresh processes: a fork of one with threads (pyarrow has some) can hang
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, _begin, (prepare, arguments)) as executor:
        try:
            yield executor
        except BrokenProcessPool as error:
            raise RunFailed("a process of the simulation was lost") from error
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def _begin(prepare: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    """Let Ctrl-C end a process of the pool without a traceback, and prepare it."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # unless the command ignores it
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if prepare is not None:
        prepare(*arguments)
