"""A module whose parameters and gradients are two flat vectors.

Shapes: P trainable parameters, Q float32 numbers of all buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raysync.errors import ConfigError
from raysync.training.vectors.buffers import (
    BufferLayout,
    check_buffers,
    persistent_buffers,
    refuse_misplaced,
)
from raysync.training.vectors.module_state import ModuleState
from raysync.training.vectors.parameter_groups import parameters_of


class FlatModel:
    """Makes a module's parameters views of `weights`, and joins their gradients in `outgoing`.

    `outgoing` (P + Q,), the gradient with the buffers behind it, goes to the server, which keeps
    each live worker's buffers and never steps on them. From it come parameters and mean buffers (P
    + Q,); a worker keeps its own buffers (like DistributedDataParallel without broadcasting).

    A vector has each parameter in turn, row by row, whatever the memory format of the module was.

    Raises:
        ConfigError: no parameter is trainable, one is not float32, or a buffer cannot travel.
    """

    def __init__(
        self,
        module: nn.Module,
        names: Sequence[str] | None = None,
        found: ModuleState = ModuleState(),  # noqa: B008 - it is frozen
    ) -> None:
        """
        Args:
            names: the names of the parameters in the whole network; default: as in the module.
            found: names the untrained parameters that travel as buffers do.
        """
        self.module = module
        self._parameters = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]
        if not self._parameters:
            raise ConfigError("model: it has no trainable parameter.")
        if others := {str(p.dtype) for p in self._parameters if p.dtype != torch.float32}:
            raise ConfigError(
                f"model: trainable parameters must be float32, got {', '.join(sorted(others))}."
            )
        self.parameters = parameters_of(module, names)
        self.size = sum(parameter.numel() for parameter in self._parameters)  # P
        self._buffers = list(persistent_buffers(module, found.moved))
        self.layout = BufferLayout({each.name: each.built for each in self._buffers}, self.size)
        refuse_misplaced(self._buffers, self._parameters)
        self.buffer_size = self.layout.size  # Q
        device = self._parameters[0].device
        self.weights = torch.empty(self.size, device=device)  # (P,)
        for parameter, weights in zip(self._parameters, self._views(self.weights), strict=True):
            weights.copy_(parameter.detach())
            parameter.data = weights
        self.outgoing = torch.zeros(self.size + self.buffer_size, device=device)  # (P + Q,)

    def _views(self, vector: Tensor) -> list[Tensor]:
        sizes = [parameter.numel() for parameter in self._parameters]
        return [
            part.view_as(parameter)
            for part, parameter in zip(torch.split(vector, sizes), self._parameters, strict=True)
        ]

    @property
    def most_servers(self) -> int:
        """The largest number of servers: a parameter or more each, and no half doubles."""
        pairs = (self.size + self.buffer_size) // 2
        return min(self.size, pairs) if self.layout.slots.doubles else self.size

    def begin_gradient(self) -> None:
        # Gradients get memory of their own, and one copy joins them. Adding to views of the vector
        # would take two more passes over it: to clear it, and to add.
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def write_gradient(self) -> None:
        """Write the sum of the backward passes, and the buffers, into `outgoing`."""
        gradients = [_row(parameter) for parameter in self._parameters]
        torch.cat([*gradients, *self._buffer_rows()], out=self.outgoing)

    @torch.no_grad()
    def write_buffers(self) -> None:
        if self._buffers:
            torch.cat(self._buffer_rows(), out=self.outgoing[self.size :])

    def _buffer_rows(self) -> list[Tensor]:
        return self.layout.rows([buffer.read() for buffer in self._buffers])

    def write_into(self, outgoing: Tensor) -> None:
        self.outgoing = outgoing

    @property
    def gradient(self) -> Tensor:
        """The gradient in `outgoing`, (P,)."""
        return self.outgoing[: self.size]

    def read_weights(self, *parts: Tensor) -> None:
        """Copy parameters from the parts of a vector (P + Q,); none: `weights` has them already."""
        offset = 0
        for part in parts:
            target = self.weights[offset : offset + len(part)]
            if part.data_ptr() != target.data_ptr():  # else they are used in place
                target.copy_(part[: len(target)])
            offset += len(part)

    def copy_weights(self, other: FlatModel) -> None:
        self.weights.copy_(other.weights, non_blocking=True)

    def move_weights(self, vector: Tensor) -> None:
        """Move `weights` into the front of a vector (P + Q,) on the same device."""
        before, self.weights = self.weights, vector[: self.size]
        self.weights.copy_(before)
        for parameter, weights in zip(self._parameters, self._views(self.weights), strict=True):
            parameter.data = weights

    @torch.no_grad()
    def read_buffers(self, incoming: Tensor) -> None:
        """Copy the buffers from the end of a vector such as (P + Q,)."""
        for buffer, value in zip(self._buffers, self.layout.tensors(incoming), strict=True):
            buffer.write(value)

    def check_buffers(self) -> None:
        """Refuse buffers of another layout after forward passes."""
        check_buffers(self.module, self._buffers)

    def initial(self) -> Tensor:
        """Return parameters and buffers as one vector (P + Q,)."""
        return torch.cat([self.weights, self.buffers()])

    @torch.no_grad()
    def buffers(self) -> Tensor:
        """Copy the module's buffers into a vector (Q,)."""
        return torch.cat([self.outgoing.new_empty(0), *self._buffer_rows()])


def _row(parameter: nn.Parameter) -> Tensor:
    """Return a parameter's gradient row by row; zeros if the loss does not depend on it."""
    gradient = parameter.grad
    if gradient is None:
        return parameter.new_zeros(parameter.numel())
    # the gradient of an embedding may be sparse
    return (gradient if gradient.layout is torch.strided else gradient.to_dense()).reshape(-1)
