"""The only file that reads a clock or sleeps."""

from __future__ import annotations

import time


def now_s() -> float:
    """Seconds of a monotonic clock with an arbitrary zero."""
    return time.monotonic()


def emulate_s(seconds: float) -> None:
    """Be a slower device for that long. For the emulation of slow workers only: nothing else waits by sleeping."""
    if seconds > 0:
        time.sleep(seconds)
