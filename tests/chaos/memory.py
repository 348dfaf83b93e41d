"""Whether the memory of a run stays flat: what all its processes hold, sampled while it goes on."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median

import psutil

from tests.chaos import processes

SAMPLE_EVERY_S = 5.0
FEWEST = 24
"""With fewer samples, two minutes, nothing is said: the processes are still being started."""
GROWTH = 0.1
SLACK_BYTES = 200e6
"""What a process that imports torch holds: one more or less is no growth."""


@dataclass
class MemorySamples:
    """The memory of a run's processes over time."""

    held_bytes: list[int] = field(default_factory=list)
    """The memory of all processes at each sample, in which shared pages count once: PSS."""
    sampled_s: float = 0.0
    """The time of the latest sample."""

    def take(self, mark: str, now_s: float) -> None:
        """Take a sample, if it is time."""
        if self.held_bytes and now_s < self.sampled_s + SAMPLE_EVERY_S:
            return
        self.sampled_s = now_s
        total = 0
        for process in processes.marked(mark):
            with suppress(psutil.Error, OSError):
                held = process.memory_full_info()
                total += getattr(held, "pss", held.uss)  # only Linux tells PSS
        self.held_bytes.append(total)

    def growth(self) -> str:
        """Say by how much the memory grew; "" if it stayed flat, or the run was too short.

        The median of the last quarter is held against the most of the first half: processes that
        were killed, and come back, make samples smaller, all of a quarter where a node is away.
        """
        count = len(self.held_bytes)
        if count < FEWEST:
            return ""
        before = max(self.held_bytes[: count // 2])
        after = median(self.held_bytes[-(count // 4) :])
        if after - before <= max(SLACK_BYTES, GROWTH * before):
            return ""
        return f"it grew from {before / 1e6:.0f} to {after / 1e6:.0f} MB"
