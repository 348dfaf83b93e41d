"""Compiling what a worker computes with torch.compile, and whether a process can do so.

The loss is compiled, with the model's forward pass in it, and torch compiles the backward pass that
goes with it. Evaluations are not compiled: each set has batches of its own sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from raysync.errors import ConfigError

Loss = Callable[[nn.Module, Any], Tensor]
"""`Task.loss`."""
TRIED: set[str] = set()
"""The kinds of devices that this process has compiled for."""


def compiled(loss: Loss) -> Loss:
    """Return a loss that torch compiles when it is first called, and again for batches of another
    size: then for all sizes.
    """
    return torch.compile(loss)


def refuse_without_compiler(device: str) -> None:
    """Check that this process can compile for a device: by compiling a line.

    Args:
        device: its name in torch.

    Raises:
        ConfigError: it cannot; the message has what torch says, such as which compiler is missing.
    """
    kind = device.partition(":")[0]
    if kind in TRIED:
        return
    try:
        torch.compile(_line)(torch.ones(2, device=device))
    except Exception as error:  # whatever torch, a compiler or the linker may raise
        raise ConfigError(
            f"workers: compile: true: torch cannot compile for {device} here: {_first(error)}."
            " Install what is missing on the nodes of these workers, or set compile: false."
        ) from error
    TRIED.add(kind)


def _line(x: Tensor) -> Tensor:
    return x.sin() + 1


def _first(error: Exception) -> str:
    """Return the first line of an error that says more than which backend raised it."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.endswith("raised:")]
    return (told or [type(error).__name__])[0].rstrip(".")
