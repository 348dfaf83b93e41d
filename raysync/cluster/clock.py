"""Real time: the only file that reads a clock, sleeps, or limits the time of a call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Event, Thread, enumerate as enumerate_threads
from typing import TypeVar

from ray.exceptions import RaySystemError

Result = TypeVar("Result")

ANSWER_S = 20.0  # how long Ray may take to answer: it takes milliseconds
SLICE_S = 1.0  # the caller waits in slices, so that its own suspension (Ctrl-Z) does not count

LIMITED = "call within a limit"  # the name of the threads of such calls


def now_s() -> float:
    """Return the seconds of a monotonic clock with an arbitrary zero."""
    return time.monotonic()


def sleep_s(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


def slept_s(seconds: float) -> float:
    """Sleep, and return how long that took."""
    began_s = now_s()
    sleep_s(seconds)
    return now_s() - began_s


class Stopwatch:
    """Measures a stretch of work."""

    seconds = 0.0  # of the latest stretch

    @contextmanager
    def running(self) -> Iterator[None]:
        began_s = now_s()
        yield
        self.seconds = now_s() - began_s


def repeat(call: Callable[[], None], every_s: float, wake: Event) -> None:
    """Call a function at once, periodically, and when `wake` is set; it must not raise."""

    def work() -> None:
        while True:
            wake.clear()
            call()
            wake.wait(every_s)

    Thread(target=work, daemon=True).start()


def is_stuck() -> bool:
    """Whether a limited call has not returned yet."""
    return any(thread.name == LIMITED for thread in enumerate_threads())


def within(limit_s: float, call: Callable[[], Result]) -> Result:
    """Return the result of a call, with a timeout; the call must not raise `StopIteration`.

    Most Ray calls wait for ever for a frozen process, and in C++, where Ctrl-C is ignored. So a
    call runs in its own thread, and the caller waits in Python; a call that does not return is
    abandoned.

    Raises:
        RaySystemError: the call wants this process to end.
        TimeoutError: the call did not return.
    """
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        # Ray raises it if the cluster is gone, which is no reason for this process to end.
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
