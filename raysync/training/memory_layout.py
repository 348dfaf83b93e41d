"""How the parameters of a model lie in the memory of the device that computes with them.

packed          views of the vector that travels: nothing is copied between the two, and on a CPU
                nothing is gained by another layout
of their own    as torch allocates them, so that each begins at a multiple of 512 bytes on a GPU:
                where the vector has one at an odd address, or where convolutions want their weights
                with the channels innermost

Only the process that computes knows of it. What travels, and what records and checkpoints hold, is
each parameter in turn, row by row, in any layout; so padding the vector in place of this, which
every size, optimizer and checkpoint would have to know of, was not needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from raysync.config import WorkerGroup
from raysync.errors import ConfigError
from raysync.training.flat import FlatModel

ALIGNED_NUMBERS = 4
"""The float32 numbers, 16 bytes, at a multiple of which a parameter has to begin for the vectorised
loads of a GPU, and for the kernels of cuBLAS that use its tensor cores."""
CONVOLUTIONS = (nn.Conv2d, nn.ConvTranspose2d)
"""The layers whose weights have four dimensions, of which `channels_last` reorders three."""


def laid_out(module: nn.Module, device: str, precision: str, memory_format: str) -> FlatModel:
    """Return the flat model of a module whose parameters lie as its device computes best.

    Args:
        module: on that device.
        device: its name in torch.
        precision: that of the computation.
        memory_format: `contiguous`; `channels_last`, which convolutions then hand on to all that
            comes behind them; `auto`: the latter on a GPU whose convolutions run on its tensor
            cores, in any precision but float32, and for weights that the module itself has like
            that.
    """
    on_gpu = device.startswith("cuda")
    if memory_format == "channels_last" or (
        memory_format == "auto" and on_gpu and precision != "float32" and has_convolutions(module)
    ):
        convert_conv2d_weight_memory_format(module, torch.channels_last)
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    keeps_strides = memory_format != "contiguous" and any(map(_is_channels_last, trainable))
    is_odd = on_gpu and not begin_aligned(parameter.numel() for parameter in trainable)
    return FlatModel(module, keeps_memory=keeps_strides or is_odd)


def has_convolutions(module: nn.Module) -> bool:
    """Say whether a module has convolutions over two dimensions."""
    return any(isinstance(part, CONVOLUTIONS) for part in module.modules())


def begin_aligned(sizes: Iterable[int]) -> bool:
    """Say whether all parameters of these sizes begin aligned, packed one behind the other."""
    *begins, _ = accumulate(sizes, initial=0)
    return not any(begin % ALIGNED_NUMBERS for begin in begins)


def _is_channels_last(parameter: Tensor) -> bool:
    return not parameter.is_contiguous() and parameter.is_contiguous(
        memory_format=torch.channels_last
    )


def check_memory_formats(groups: Iterable[WorkerGroup], module: nn.Module, name: str) -> None:
    """Refuse a format that a model has no use for.

    Raises:
        ConfigError: it names the group and the model.
    """
    for group in groups:
        if group.memory_format == "channels_last" and not has_convolutions(module):
            raise ConfigError(
                f"workers: {group.name}: memory_format: channels_last: {name} has no convolution"
                " over two dimensions. With auto it is as it is best for the model."
            )
