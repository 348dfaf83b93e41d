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

# signals this close count as one: `timeout` signals the process and then its group
TOGETHER_S = 0.3
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stoppable() -> Iterator[None]:
    """Handle signals as the module says; outside the main thread, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.getsignal(number) for number in STOPS}
    stop_handler = _StopHandler()
    for number, handler in previous.items():
        # nohup, and a shell for a command in the background, set a signal to be ignored
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop_handler)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_await_second_signal, args=(reader,), daemon=True).start()
    try:
        yield
    except SystemExit:
        if stop_handler.number in (None, signal.SIGINT):
            raise
        # a call of Ray that a signal interrupts would exit with another number
        raise SystemExit(128 + stop_handler.number) from None
    finally:
        signal.set_wakeup_fd(previous_fd)
        os.close(writer)
        for number, handler in previous.items():
            signal.signal(number, handler)


class _StopHandler:
    """The handler of stop signals: the first one raises, at once or after a last checkpoint."""

    def __init__(self) -> None:
        self.number: int | None = None  # the first signal

    def __call__(self, number: int, _: object) -> None:
        if self.number is not None:
            return
        self.number = number
        if number == signal.SIGHUP:
            _discard_terminal_output()
        leave = partial(_raise, number)
        if not stop_active_run(leave):  # no run that can take a checkpoint is under way
            leave()


def _raise(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _discard_terminal_output() -> None:
    # writing to a closed terminal would raise
    null = os.open(os.devnull, os.O_WRONLY)
    for fd in (1, 2):
        if os.isatty(fd):
            os.dup2(null, fd)


def _await_second_signal(reader: int) -> None:
    """End the process at the second Ctrl-C, or at the first one after another signal to stop."""
    first_s = None
    while numbers := os.read(reader, 1):
        number = numbers[0]
        if number not in STOPS:
            continue
        if first_s is None:
            first_s, descendants = time.monotonic(), _descendants()
        elif number == signal.SIGINT and time.monotonic() > first_s + TOGETHER_S:
            _end_at_once(descendants, 128 + number)
    os.close(reader)


def _descendants() -> list[Any]:
    import psutil  # slow to import

    return list(psutil.Process().children(recursive=True))


def _end_at_once(descendants: list[Any], status: int) -> None:
    """End the process and its descendants, some of which may have lost their parents by now."""
    import psutil

    for process in {*descendants, *_descendants()}:
        with suppress(psutil.Error):
            process.kill()
    os.write(2, b"\nEnded at once. The records up to now are kept.\n")
    os._exit(status)
