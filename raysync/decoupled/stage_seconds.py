"""The seconds of a stage's passes on the device that its group describes, the same on each engine.

A pass takes the stage's share of the operations of a step, a third of it forward and two thirds
backward (`weights: latest` runs forward again first).
"""

from __future__ import annotations

from raysync.decoupled.pipelined_topology import PipelinedPlan
from raysync.emulation.step_time import StepTime
from raysync.engine.messages import BackwardCall, ForwardCall

FORWARD = 1 / 3  # the forward pass's share of a step's operations; a backward pass has 2 / 3
StagePass = ForwardCall | BackwardCall


class StageSeconds:
    """The durations of one stage's passes."""

    def __init__(
        self, step_time: StepTime, batch_size: int, plan: PipelinedPlan, stage: int
    ) -> None:
        self._step_time, self._share, self._batch_size = step_time, plan.shares[stage], batch_size
        self._is_last = stage == plan.paradigm.modules
        self._repeats = plan.paradigm.weights == "latest"

    def of(self, message: StagePass, computed_s: float = 0.0) -> tuple[float, float]:
        """Return the seconds of the forward and of the backward part of a pass.

        Args:
            computed_s: the pass's measured seconds, for a device that is not emulated.
        """
        forward, backward = self._parts(message)
        whole_s = self._step_time.seconds(
            message.batch - 1,
            self._batch_size,
            message.fault.factor,
            computed_s / (self._share * (forward + backward)),
        )
        return self._share * forward * whole_s, self._share * backward * whole_s

    def whole(self, message: StagePass, computed_s: float) -> float:
        return sum(self.of(message, computed_s))

    def _parts(self, message: StagePass) -> tuple[float, float]:
        """Return the forward and the backward share of the stage's operations in a pass."""
        if isinstance(message, ForwardCall):
            return FORWARD, 0.0
        if self._is_last:  # it runs forward only now
            return FORWARD, 1 - FORWARD
        return 0.0, 1 - FORWARD + (FORWARD if self._repeats else 0.0)
