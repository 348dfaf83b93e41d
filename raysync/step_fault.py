"""What faults do to one step of a worker, and to the ways of its vectors."""

from __future__ import annotations

import msgspec


class StepFault(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """The effect of all faults that hold when a step is released."""

    factor: float = 1.0
    """The factor by which its duration is multiplied."""
    latency_s: float = 0.0
    """Seconds that are added to each way between worker and server."""

    def beside(self, other: StepFault) -> StepFault:
        """Return the effect of both."""
        return StepFault(self.factor * other.factor, self.latency_s + other.latency_s)

    def way_s(self, latency_s: float, transfer_s: float) -> float:
        """Return the seconds of a way.

        Args:
            latency_s: its latency without faults.
            transfer_s: the seconds that its links take for the bytes.
        """
        return latency_s + self.latency_s + transfer_s


NO_FAULT = StepFault()
