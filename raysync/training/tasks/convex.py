"""Logistic regression: a convex task with known constants, for statements that are proved under
convexity.
"""

from __future__ import annotations

from math import prod, sqrt

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

LIPSCHITZ_OF_UNIT_NORM = sqrt(2)
"""L, the Lipschitz constant of the mean cross-entropy of a batch as a function of all weights, if
every sample has norm 1.

For one sample x of class y, with p = softmax(W x), the gradient is (p - e_y) x^T, of norm |p - e_y|
|x|. As p is a distribution, |p - e_y|^2 = (1 - p_y)^2 + sum of p_k^2 over the others <= 2 (1 -
p_y)^2 <= 2. The norm of a mean is at most as large.
"""


class UnitNorm(nn.Module):
    """Divides each row by its Euclidean norm; a row of zeros is unchanged."""

    def forward(self, x: Tensor) -> Tensor:
        """Return rows (N, D) of norm 1."""
        return normalize(x, dim=1)


def logistic_regression(
    input_shape: tuple[int, ...], classes: int, *, unit_norm: bool = False
) -> nn.Module:
    """Build a softmax regression with weights 0; `unit_norm` divides each (x, 1) by its length.

    The mean cross-entropy is convex in the weights, which are one matrix (classes, features +
    1): the bias is its last column. With `unit_norm` it is Lipschitz with
    `LIPSCHITZ_OF_UNIT_NORM`, whatever the data. The predicted class of a given matrix does not
    depend on `unit_norm`, only its confidence does."""
    features = prod(input_shape) + 1
    linear = nn.Linear(features, classes, bias=False)
    torch.nn.init.zeros_(linear.weight)
    scaled = [UnitNorm()] if unit_norm else []
    return nn.Sequential(nn.Flatten(), nn.ConstantPad1d((0, 1), 1.0), *scaled, linear)
