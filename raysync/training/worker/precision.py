"""The precision that a forward pass, and what goes back through it, is computed in."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from raysync.errors import ConfigError
from raysync.training.worker.device import use_tf32

SINCE_AMPERE = ("tf32", "bf16")
"""The precisions that NVIDIA's GPUs have from compute capability 8.0 on."""


def refuse_unsupported(precision: str, device: str) -> None:
    """Check that a device has a precision. CPUs have all: for tf32 they round nothing.

    Args:
        precision: as the experiment says it.
        device: its name in torch.

    Raises:
        ConfigError: it does not have it.
    """
    if precision not in SINCE_AMPERE or not device.startswith("cuda") or torch.version.hip:
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        raise ConfigError(
            f"workers: precision: {precision}: {torch.cuda.get_device_name(device)}, of compute"
            f" capability {'.'.join(map(str, capability))}, does not have it, which comes with 8.0."
            " Set precision: float32 for these workers."
        )


def computing_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context that computes a forward pass in a precision; what is computed afterwards,
    such as its backward pass, rounds the factors of products as it does.
    """
    use_tf32(precision != "float32")
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def taken_in(precision: str, x: Tensor) -> Tensor:
    """Return an input as a computation in that precision takes it, whatever it was computed in:
    autocast converts what it needs, others need float32.
    """
    return x if precision == "bf16" or not x.is_floating_point() else x.float()
