"""Muon for the matrices of hidden layers, AdamW for all other parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import AdamW, Optimizer


class MuonWithAdamW(Optimizer):
    """torch's Muon on groups of matrices, and torch's AdamW on the others.

    Both have the same learning rate and weight decay: Muon's steps have the size of AdamW's by
    default.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; the step
        size: Liu et al. 2025, "Muon is Scalable for LLM Training" (arXiv:2502.16982).
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        nesterov: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        *,
        adjust_lr_fn: str = "match_rms_adamw",
        ns_steps: int = 5,
    ) -> None:
        """
        Args:
            params: groups of parameters that all have two dimensions, or all have one.
            adjust_lr_fn: `match_rms_adamw`, or `original`, whose steps are longer.
            ns_steps: iterations that make a matrix orthogonal.
        """
        groups = [group | {"lr": lr, "weight_decay": weight_decay} for group in params]
        matrices = [group for group in groups if _has_matrices(group)]
        others = [group for group in groups if not _has_matrices(group)]
        self._optimizers: list[Optimizer] = []
        if matrices:
            options: dict[str, Any] = {"adjust_lr_fn": adjust_lr_fn, "ns_steps": ns_steps}
            self._optimizers += [
                torch.optim.Muon(matrices, momentum=momentum, nesterov=nesterov, **options)
            ]
        if others:
            self._optimizers += [AdamW(others, betas=betas, fused=True)]
        # both optimizers have filled in these groups, and step on the very same ones
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None, "gradients are given"
        for optimizer in self._optimizers:
            # `load_state_dict` replaces `state` and `param_groups` of this object only
            optimizer.state, is_muon = self.state, isinstance(optimizer, torch.optim.Muon)
            optimizer.param_groups = [g for g in self.param_groups if _has_matrices(g) == is_muon]
            optimizer.step()


def _has_matrices(group: dict[str, Any]) -> bool:
    return bool(group["params"][0].ndim == 2)
