"""The only file that reads a clock or sleeps."""

from __future__ import annotations

import time


def now_s() -> float:
    """Seconds of a monotonic clock with an arbitrary zero."""
    return time.monotonic()


def sleep_s(seconds: float) -> None:
    """Do nothing for that long: for the emulation of slow workers, and for a controller that only
    waits for a timer.
    """
    if seconds > 0:
        time.sleep(seconds)
