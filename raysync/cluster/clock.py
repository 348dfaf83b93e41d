"""Real time: the only file that reads a clock or sleeps, and that limits how long a call may take.

Ray has few limits: most of its calls wait for ever for a process that is frozen. They wait in C++,
where Ctrl-C is not heard either. So a call runs in a thread of its own, and the caller waits for
that thread in Python; a call that does not come back is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Event, Thread, enumerate as enumerate_threads
from typing import TypeVar

from ray.exceptions import RaySystemError

Result = TypeVar("Result")

ANSWER_S = 20.0
"""How long Ray may take to answer what it knows: it takes milliseconds."""
SLICE_S = 1.0
"""The length of one wait: the caller waits several times, so that the time in which it was itself
suspended (Ctrl-Z) does not count."""

LIMITED = "call within a limit"
"""The name of the threads of such calls."""


def now_s() -> float:
    """Return the seconds of a monotonic clock with an arbitrary zero."""
    return time.monotonic()


def sleep_s(seconds: float) -> None:
    """Do nothing for that long: for the emulation of slow workers, and for a controller that only
    waits for a timer.
    """
    if seconds > 0:
        time.sleep(seconds)


def repeat(call: Callable[[], None], every_s: float, sooner: Event) -> None:
    """Call it now, and again and again, in a thread that ends with this process.

    Args:
        call: must not raise.
        every_s: the time between two calls.
        sooner: once it is set, the next call is made at once.
    """

    def work() -> None:
        while True:
            sooner.clear()
            call()
            sooner.wait(every_s)

    Thread(target=work, daemon=True).start()


def is_stuck() -> bool:
    """Say whether a call is still under way whose time is limited, or was."""
    return any(thread.name == LIMITED for thread in enumerate_threads())


def within(limit_s: float, call: Callable[[], Result]) -> Result:
    """Return what a call returns, if it comes back in time.

    Args:
        limit_s: how long it may take.
        call: may raise anything but `StopIteration`.

    Raises:
        RaySystemError: the call wants this process to end.
        TimeoutError: the call did not come back.
    """
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        # Ray's word for a cluster that has gone: no reason for this process to end.
        except SystemExit as error:
            future.set_exception(RaySystemError(f"exit status {error.code}"))
        except BaseException as error:
            future.set_exception(error)

    Thread(target=work, name=LIMITED, daemon=True).start()
    left_s = limit_s
    while not future.done():
        if left_s <= 0:
            raise TimeoutError(f"no answer within {limit_s:g} s")
        wait([future], timeout=min(SLICE_S, left_s))
        left_s -= SLICE_S
    return future.result()
