"""The convnet with a parameter that does nothing, so that a model of little arithmetic can have any
size.
"""

import torch
from torch import Tensor, nn

from raysync.training.models.builtin import convnet


class Padded(nn.Module):
    """The convnet, and a vector of `padding` parameters whose gradient is zero but exists."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.convnet = convnet((1, 28, 28), 10)
        self.padding = nn.Parameter(torch.zeros(padding))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits: (N, 1, 28, 28) -> (N, 10)."""
        return self.convnet(x) + 0 * self.padding[0]
