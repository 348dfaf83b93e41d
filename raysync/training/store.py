"""The parameter store: one flat model, its optimizer, and the update rule.

Shape legend: K = pushes in one update, P = trainable parameters, Q = elements of all buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raysync.config import Update
from raysync.training.schedule import learning_rate


class ParameterStore:
    """Applies gradients to a flat vector with a torch optimizer.

    One `apply` is one optimizer step with the sample-weighted mean gradient of its pushes (`combine: sum`: with their
    sum), at lr(progress) x number of pushes (`lr_scaling: none`: x 1). The linear scale is that of Sync-Switch's
    configuration policy (Li et al. 2021, section IV-C): n pushes in one update move the model as far as n updates would.
    """

    def __init__(self, initial: Tensor, size: int, update: Update) -> None:
        """
        Args:
            initial: parameters and buffers, (P + Q,) float32 on the CPU.
            size: P.
            update: optimizer, schedule and combination.
        """
        self.update = update
        self.version = 0
        self._parameter = torch.nn.Parameter(initial[:size].clone())  # (P,)
        self._parameter.grad = torch.zeros(size)
        self._buffers: dict[str, Tensor] = {}
        self._initial_buffers = initial[size:].clone()  # (Q,)
        self._optimizer = _optimizer(self._parameter, update)

    def apply(
        self, vectors: Sequence[Tensor], samples: Sequence[int], workers: Sequence[str | None], progress: float,
    ) -> int:
        """One optimizer step; returns the version it makes.

        Args:
            vectors: K of (P + Q,): gradients with buffers behind them.
            samples: K batch sizes.
            workers: K names of who pushed; None for one that has left since, whose buffers no longer count.
            progress: of the run before this update, from 0 to 1.
        """
        gradient = self._parameter.grad
        assert gradient is not None, "the gradient's buffer is made once"
        size = gradient.numel()
        weights = [1.0] * len(samples) if self.update.combine == "sum" else [n / sum(samples) for n in samples]
        gradient.zero_()
        for vector, weight, worker in zip(vectors, weights, workers, strict=True):
            gradient.add_(vector[:size], alpha=weight)
            if vector.numel() > size and worker is not None:
                self._buffers[worker] = vector[size:].clone()
        if self.update.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_([self._parameter], self.update.clip_norm)
        scale = len(vectors) if self.update.lr_scaling == "linear" else 1
        self._optimizer.param_groups[0]["lr"] = scale * learning_rate(self.update, progress, self.version)
        self._optimizer.step()
        self.version += 1
        return self.version

    def forget(self, worker: str) -> None:
        """A worker has left: its buffers no longer count."""
        self._buffers.pop(worker, None)

    def publish(self) -> Tensor:
        """Parameters, and behind them the mean of the live workers' buffers: a new vector (P + Q,)."""
        buffers = torch.stack(list(self._buffers.values())).mean(dim=0) if self._buffers else self._initial_buffers
        return torch.cat([self._parameter.detach(), buffers])


def _optimizer(parameter: torch.nn.Parameter, update: Update) -> torch.optim.Optimizer:
    if update.optimizer == "sgd":
        return torch.optim.SGD([parameter], lr=update.lr, momentum=update.momentum, nesterov=update.nesterov,
                               weight_decay=update.weight_decay)
    kind = torch.optim.Adam if update.optimizer == "adam" else torch.optim.AdamW
    return kind([parameter], lr=update.lr, betas=update.betas, weight_decay=update.weight_decay)
