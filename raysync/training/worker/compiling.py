"""torch.compile of a worker's loss, and with it the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from raysync.errors import ConfigError

Loss = Callable[[nn.Module, Any], Tensor]  # `Task.loss`
TRIED: set[str] = set()  # kinds of devices that this process has compiled for


def compiled(loss: Loss) -> Loss:
    return torch.compile(loss)  # torch compiles again for a second batch size, then for all sizes


def refuse_without_compiler(device: str) -> None:
    """Compile a small function to check that this process can compile for a device."""
    kind = device.partition(":")[0]
    if kind in TRIED:
        return
    try:
        torch.compile(_wave)(torch.ones(2, device=device))
    except Exception as error:  # whatever torch, a compiler or the linker may raise
        raise ConfigError(
            f"workers: compile: true: torch cannot compile for {device} here: {_reason(error)}."
            " Install what is missing on the nodes of these workers, or set compile: false."
        ) from error
    TRIED.add(kind)


def _wave(x: Tensor) -> Tensor:
    return x.sin() + 1


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    # a line "... raised:" names only the backend
    reasons = [line for line in lines if line and not line.endswith("raised:")]
    return (reasons or [type(error).__name__])[0].rstrip(".")
