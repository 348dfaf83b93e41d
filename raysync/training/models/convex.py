"""Logistic regression: a convex task with known constants, for theorems under convexity."""

from __future__ import annotations

from math import prod, sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

# L, the Lipschitz constant of the mean cross-entropy over all weights, for samples of norm 1.
# With p = softmax(W x) a sample's gradient (p - e_y) x^T has norm |p - e_y| |x|, and |p - e_y|^2 =
# (1 - p_y)^2 + sum of the other p_k^2 <= 2 (1 - p_y)^2 <= 2. The norm of a mean is at most as
# large.
LIPSCHITZ_OF_UNIT_NORM = sqrt(2)


class UnitNorm(nn.Module):
    """Divides each row (N, D) by its Euclidean norm; a row of zeros is unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        """Return rows of norm 1."""
        return normalize(x, dim=1)


def logistic_regression(
    input_shape: tuple[int, ...], classes: int, *, unit_norm: bool = False
) -> nn.Module:
    """Build a softmax regression with weights 0; `unit_norm` divides each (x, 1) by its length.

    The mean cross-entropy is convex in the weights (classes, features + 1), whose last column is
    the bias. With `unit_norm` it is Lipschitz, and predicted classes stay the same.
    """
    features = prod(input_shape) + 1
    linear = nn.Linear(features, classes, bias=False)
    torch.nn.init.zeros_(linear.weight)
    scaled = [UnitNorm()] if unit_norm else []
    return nn.Sequential(nn.Flatten(), nn.ConstantPad1d((0, 1), 1.0), *scaled, linear)
