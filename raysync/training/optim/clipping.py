"""The norm of a flat gradient (P,), and clipping it."""

from __future__ import annotations

import torch
from torch import Tensor

# elements whose norm is taken at once: torch's sum of more squares in float32 is far off
NORM_BLOCK = 2**20


def norm_of(gradient: Tensor) -> Tensor:
    whole = len(gradient) // NORM_BLOCK * NORM_BLOCK
    norm: Tensor = torch.linalg.vector_norm(gradient[whole:])
    if whole:
        blocks = torch.linalg.vector_norm(gradient[:whole].view(-1, NORM_BLOCK), dim=1)
        norm = torch.linalg.vector_norm(torch.cat([blocks, norm.view(1)]))
    return norm


def clipped(gradient: Tensor, longest: float, norm: Tensor, out: Tensor) -> Tensor:
    """Clip a gradient (P,) with a known norm like `clip_grad_norm_`, into `out` if it changes."""
    # torch's function would write into the gradient, and received vectors are read-only
    scale = longest / (norm + 1e-6)
    return torch.mul(gradient, scale, out=out) if scale < 1 else gradient
