"""The precision of a forward pass and its backward pass."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from raysync.errors import ConfigError
from raysync.training.worker.device import use_tf32

SINCE_AMPERE = ("tf32", "bf16")  # NVIDIA: from compute capability 8.0 on


def refuse_unsupported(precision: str, device: str) -> None:
    """Refuse a precision that a GPU lacks; CPUs have all, as they round nothing for tf32."""
    if precision not in SINCE_AMPERE or not device.startswith("cuda") or torch.version.hip:
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        raise ConfigError(
            f"workers: precision: {precision}: {torch.cuda.get_device_name(device)}, of compute"
            f" capability {'.'.join(map(str, capability))}, does not support it; it needs 8.0 or"
            " later. Set precision: float32 for these workers."
        )


def computing_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return the context of a forward pass in a precision; its backward pass rounds likewise."""
    use_tf32(precision != "float32")
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return nullcontext()


def taken_in(precision: str, x: Tensor) -> Tensor:
    """Convert an input for a precision: autocast converts by itself, others need float32."""
    return x if precision == "bf16" or not x.is_floating_point() else x.float()
