"""Which batch a module runs forward and backward, and when: fully decoupled backpropagation with
delayed gradients.

Source: Zhuang et al., "Fully Decoupled Neural Network Learning Using Delayed Gradients" (FDG, 2021)
and its program. Pham and Ahn, "Distributed Deep Learning using Stochastic Gradient Staleness"
(2025) put S such pipelines side by side; of their text only the abstract is public to us, so what
is here is FDG's.

StageMachines are k = 1 ... K, ticks t = 1, 2, ..., batches b = 1, 2, ... At tick t

    module k runs batch t - k + 1 forward, and batch t - 2K + k + 1 backward

(for the last module the same batch), as far as there are such batches. So the gradient of a batch
comes to module k D = 2(K - k) ticks after the batch did. Within a tick a module first updates its
weights with the delayed gradient, then runs the next batch forward; the last one runs forward,
backward, and updates. That order of work is all that the delays need:

    module k < K:   F1 ... FD   B1   F(D+1) B2   F(D+2) B3 ...
    module K:       F1 B1   F2 B2   F3 B3 ...

No clock is shared: each module works its list off as its inputs arrive, and the delays stay as
scheduled.

`Locked` is what these schedules are measured against: plain backpropagation through the same
modules, one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """Of one pipeline of K modules."""

    modules: int
    """K, at least 1."""

    def delay(self, module: int) -> int:
        """D = 2(K - k), in ticks: between a batch's forward and backward in that module."""
        return 2 * (self.modules - module)

    def forward_tick(self, module: int, batch: int) -> int:
        """When a module runs a batch forward."""
        return batch + module - 1

    def backward_tick(self, module: int, batch: int) -> int:
        """When a module runs a batch backward."""
        return self.forward_tick(module, batch) + self.delay(module)

    def forward_batch(self, module: int, tick: int) -> int | None:
        """What a module runs forward at a tick; None while the pipeline fills."""
        batch = tick - module + 1
        return batch if batch >= 1 else None

    def backward_batch(self, module: int, tick: int) -> int | None:
        """What a module runs backward at a tick; None while the pipeline fills."""
        batch = tick - 2 * self.modules + module + 1
        return batch if batch >= 1 else None

    def forwards_before(self, module: int, batch: int) -> int:
        """How many batches a module has run forward when it comes to run that one backward."""
        return max(batch, batch - 1 + self.delay(module))

    def ticks(self, batches: int) -> int:
        """Until every module has run so many batches backward: the pipeline fills in K - 1 of them,
        and drains in K - 1.
        """
        return batches + 2 * (self.modules - 1)


@dataclass(frozen=True)
class Locked:
    """Plain backpropagation over K modules: a batch goes forward and back through all before the
    next one enters.

    Every module waits for the loss of its batch (backward locking) and for the update (update
    locking): F1 B1 F2 B2 ...
    """

    modules: int
    """K, at least 1."""

    def delay(self, module: int) -> int:
        """None."""
        return 0

    def forwards_before(self, module: int, batch: int) -> int:
        """As `Schedule.forwards_before`."""
        return batch
