"""The effect of faults on a step."""

from __future__ import annotations

import msgspec


class StepFault(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """All faults at a step's release together."""

    factor: float = 1.0  # multiplies its duration
    latency_s: float = 0.0  # added to each transfer between worker and server

    def combine(self, other: StepFault) -> StepFault:
        return StepFault(self.factor * other.factor, self.latency_s + other.latency_s)

    def way_s(self, latency_s: float, transfer_s: float) -> float:
        """Add a transfer's fault-free latency, the faults', and the time on its links."""
        return latency_s + self.latency_s + transfer_s


NO_FAULT = StepFault()
