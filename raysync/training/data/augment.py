"""Augmentation of a batch, on tensors, before normalisation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

PADDING = 4  # black pixels around the image before the crop: He et al. (2016), section 4.2


def crop_and_flip(images: Tensor, seed: int) -> Tensor:
    """Shift images (N, C, H, W) by up to 4 pixels, and mirror half of them, at random."""
    count, channels, height, width = images.shape
    random = torch.Generator().manual_seed(seed)
    top, left = torch.randint(0, 2 * PADDING + 1, (2, count), generator=random)
    flip = torch.rand(count, generator=random) < 0.5
    rows = top[:, None] + torch.arange(height)  # (N, H)
    columns = torch.arange(width).expand(count, width)
    columns = left[:, None] + torch.where(flip[:, None], width - 1 - columns, columns)  # (N, W)
    padded = pad(images, (PADDING,) * 4)
    return padded[
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
