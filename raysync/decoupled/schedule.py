"""The order in which a stage runs batches forward and backward: fully decoupled backpropagation
with delayed gradients.

Source: Zhuang et al., "Fully Decoupled Neural Network Learning Using Delayed Gradients" (FDG, 2021)
and its program. Pham and Ahn, "Distributed Deep Learning using Stochastic Gradient Staleness"
(2025) put S such pipelines side by side; of their text only the abstract is public, so this file
follows FDG.

There are stages k = 1 ... K, ticks t = 1, 2, ..., and batches b = 1, 2, ... At tick t

    stage k runs batch t - k + 1 forward, and batch t - 2K + k + 1 backward

(for the last stage this is the same batch), as far as there are such batches. So the gradient of a
batch reaches stage k D = 2(K - k) ticks after the batch did. Within a tick a stage first updates
its weights with the delayed gradient, then runs the next batch forward; the last stage runs
forward, backward, and updates. The delays follow from that order of work alone:

    stage k < K:   F1 ... FD   B1   F(D+1) B2   F(D+2) B3 ...
    stage K:       F1 B1   F2 B2   F3 B3 ...

No clock is shared: each stage goes through its list as its inputs arrive, and the delays stay as
scheduled.

`Locked` is the baseline for these schedules: plain backpropagation through the same stages, one at
a time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineSchedule:
    """The schedule of one pipeline of K stages."""

    stages: int
    """K, at least 1."""

    def delay(self, stage: int) -> int:
        """Return D = 2(K - k): the ticks between a batch's forward and backward pass in a stage."""
        return 2 * (self.stages - stage)

    def forwards_before(self, stage: int, batch: int) -> int:
        """Return how many batches a stage has run forward when it runs that batch backward."""
        return max(batch, batch - 1 + self.delay(stage))


@dataclass(frozen=True)
class Locked:
    """Plain backpropagation over K stages: a batch goes forward and back through all stages before
    the next one enters.

    Every stage waits for the loss of its batch (backward locking) and for the update (update
    locking): F1 B1 F2 B2 ...
    """

    stages: int
    """K, at least 1."""

    def delay(self, stage: int) -> int:
        """Return 0: no gradient is delayed."""
        return 0

    def forwards_before(self, stage: int, batch: int) -> int:
        return batch
