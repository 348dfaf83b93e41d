"""Elementwise optimizers for outer steps that torch lacks.

With local steps, a gradient is the change of a worker's weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class DelayedNesterov(Optimizer):
    """Nesterov momentum that takes gradients at every N-th step only, N of them at once.

    With the gradient D, b = `momentum`, N = `every`: acc <- acc + D; and at every N-th step
        m <- b m + acc / N;  acc <- 0;  theta <- theta - lr ((1 - c N + c) b m + D / N)
    at all others
        theta <- theta - lr (c b m + D / N)

    Source: Liu et al. 2024, "Asynchronous Local-SGD Training for Language Modeling"
        (arXiv:2401.09135), algorithm 3.
    """

    def __init__(
        self, params: Any, lr: float, momentum: float, *, every: int, c: float = 0.0
    ) -> None:
        """
        Args:
            lr: of N steps together: each takes an N-th of its gradient.
            every: 1: Nesterov momentum as torch has it.
            c: the momentum's share of each step but the N-th.
        """
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"every: {every}: it must be a whole number from 1")
        if not 0 <= c <= 1 / every:
            raise ValueError(f"c: {c}: it must be from 0 to 1 / every = {1 / every:g}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "every": every, "c": c})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are given"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)

    def _step(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, lr, every, share = self.state[parameter], group["lr"], group["every"], group["c"]
        if not state:
            state["step"] = 0
            state["momentum_buffer"] = torch.zeros_like(parameter)
            state["accumulated"] = torch.zeros_like(parameter)
        state["step"] += 1
        buffer, accumulated = state["momentum_buffer"], state["accumulated"].add_(gradient)
        if state["step"] % every == 0:
            buffer.mul_(group["momentum"]).add_(accumulated, alpha=1 / every)
            accumulated.zero_()
            share = 1 - share * every + share
        if share:
            parameter.add_(buffer, alpha=-lr * share * group["momentum"])
        parameter.add_(gradient, alpha=-lr / every)


class MLA(Optimizer):
    """Momentum look-ahead: m <- g m + (1 - g) D;  theta <- theta - lr (g m + D), with g =
    `momentum`.

    Source: Ajanthan et al. 2025, "Momentum Look-Ahead for Asynchronous Distributed
        Low-Communication Training" (MCDC at ICLR 2025), as HeLoCo (arXiv:2606.00271) has it.
    """

    def __init__(self, params: Any, lr: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are given"
        for group in self.param_groups:
            lr, decay = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if (gradient := parameter.grad) is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                buffer = state["momentum_buffer"].mul_(decay).add_(gradient, alpha=1 - decay)
                parameter.add_(buffer, alpha=-lr * decay).add_(gradient, alpha=-lr)


# names in `update.optimizer` -> classes
OUTER: dict[str, type[Optimizer]] = {"delayed-nesterov": DelayedNesterov, "mla": MLA}
