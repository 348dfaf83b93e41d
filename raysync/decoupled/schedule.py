"""The order of a stage's passes: fully decoupled backpropagation with delayed gradients.

Source: Zhuang et al., "Fully Decoupled Neural Network Learning Using Delayed Gradients" (FDG, 2021)
and its program. Pham and Ahn, "Distributed Deep Learning using Stochastic Gradient Staleness"
(2025) run S such pipelines in parallel; only their abstract is public, so this file follows FDG.

At tick t stage k of K runs batch t - k + 1 forward and batch t - 2K + k + 1 backward (the last
stage: the same batch). A stage first updates its weights with the delayed gradient, then runs the
next batch forward. The delays follow from this order alone, so stages need no common clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineSchedule:
    stages: int

    def delay(self, stage: int) -> int:
        """Return D = 2(K - k), the ticks between a batch's forward and backward pass."""
        return 2 * (self.stages - stage)

    def forwards_before(self, stage: int, batch: int) -> int:
        """Count the batches that a stage has run forward when it runs `batch` backward."""
        # stage k < K:   F1 ... FD   B1   F(D+1) B2   F(D+2) B3 ...
        # stage K:       F1 B1   F2 B2   F3 B3 ...
        return max(batch, batch - 1 + self.delay(stage))


@dataclass(frozen=True)
class Locked:
    """Plain backpropagation, the baseline: F1 B1 F2 B2 ..., with backward and update locking."""

    stages: int

    def delay(self, stage: int) -> int:
        return 0

    def forwards_before(self, stage: int, batch: int) -> int:
        return batch
