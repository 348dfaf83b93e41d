"""Stop a command on Ctrl-C, SIGTERM (`kill`, `ray job stop`) or SIGHUP (a closed terminal).

The first signal ends the command in good order: a last checkpoint, complete records, and the
shutdown of actors and a private cluster. A second Ctrl-C ends it at once. Python's handlers run in
the main thread, after the call of Ray that it is in, which may never return. So a thread reads the
second signal from Python's wakeup pipe.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from raysync.running.stop_request import stop_active_run

TOGETHER_S = 0.3
"""Signals this close count as one: `timeout` signals the process and then its group."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stoppable() -> Iterator[None]:
    """Handle signals as the module says; outside the main thread, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPS}
    leave = _Leave()
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # by nohup, or by a shell that runs it in the background
            signal.signal(number, leave)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    fd_before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_await_the_second, args=(reader,), daemon=True).start()
    try:
        yield
    except SystemExit:
        if leave.number in (None, signal.SIGINT):
            raise
        # a call of Ray that a signal interrupts would exit with another number
        raise SystemExit(128 + leave.number) from None
    finally:
        signal.set_wakeup_fd(fd_before)
        os.close(writer)
        for number, handler in before.items():
            signal.signal(number, handler)


class _Leave:
    """The handler of stop signals: the first one raises, at once or after a last checkpoint."""

    def __init__(self) -> None:
        self.number: int | None = None  # of the first signal

    def __call__(self, number: int, _: object) -> None:
        if self.number is not None:
            return
        self.number = number
        if number == signal.SIGHUP:
            _leave_the_terminal()
        leave = partial(_raise, number)
        if not stop_active_run(leave):
            leave()


def _raise(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _leave_the_terminal() -> None:
    """Redirect the output of a closed terminal: writing to it would raise."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        if os.isatty(fd):
            os.dup2(nowhere, fd)


def _await_the_second(reader: int) -> None:
    """End the process at the second Ctrl-C, or at the first one after another signal to stop."""
    first_s = None
    while numbers := os.read(reader, 1):
        number = numbers[0]
        if number not in STOPS:
            continue
        if first_s is None:
            first_s, descendants = time.monotonic(), _descendants()
        elif number == signal.SIGINT and time.monotonic() > first_s + TOGETHER_S:
            _end(descendants, 128 + number)
    os.close(reader)


def _descendants() -> list[Any]:
    import psutil  # slow to import

    return list(psutil.Process().children(recursive=True))


def _end(descendants: list[Any], status: int) -> None:
    """End the process and its descendants at once.

    The descendants at the first signal are passed in: some may have lost their parents since.
    """
    import psutil

    for process in {*descendants, *_descendants()}:
        with suppress(psutil.Error):
            process.kill()
    os.write(2, b"\nEnded at once. The records up to now are kept.\n")
    os._exit(status)
