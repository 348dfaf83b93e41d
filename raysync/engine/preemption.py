"""Workers that leave in order, since their node is about to be taken away.

A cloud that takes a spot machine back announces it some time before. A worker there ends the step
that it is at, and its push counts; where it would begin the next one it leaves. It comes back as
the next life of its slot, like one that was lost, as soon as there is room elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from raysync.engine.inflight import InFlight

DRAINED = "its node is drained: preemption"
"""The reason with which such a worker leaves."""


class Preemptions:
    """The workers whose nodes will be taken away."""

    def __init__(self, inflight: InFlight, leave: Callable[[str], None]) -> None:
        """
        Args:
            inflight: the steps under way.
            leave: called with a worker that is to leave now; it may have left, or not joined.
        """
        self._inflight, self._leave = inflight, leave
        self.due: set[str] = set()
        """The workers that begin no further step."""

    def announce(self, worker: str) -> None:
        """Take in that the node of a worker will be taken away."""
        self.due.add(worker)
        if worker not in self._inflight.workers:
            self._leave(worker)
