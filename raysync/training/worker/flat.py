"""A module whose parameters and gradients are those of two flat vectors.

Shape legend: P = trainable parameters, Q = numbers of float32 that all buffers take.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raysync.errors import ConfigError
from raysync.training.server.parameter_groups import parameters_of
from raysync.training.worker.buffers import (
    BufferLayout,
    check_kept,
    persistent_buffers,
    refuse_misplaced,
)


class FlatModel:
    """Wraps an nn.Module; its parameters become views of `weights`, and their gradients are joined
    in `gradient`.

    One contiguous float32 vector travels each way:
        * to the server `outgoing`, (P + Q,): the gradient, and behind it the buffers (batch-norm
          statistics), laid out as in `buffers`. Buffers are no gradients: the server keeps each
          live worker's latest and never steps on them.
        * from the server (P + Q,): parameters, and behind them the mean of the live workers'
          buffers. A worker keeps its own buffers (as in DistributedDataParallel without
          broadcasting); evaluation takes the means.

    Each backward pass leaves gradients in memory of its own, as in any torch program; one copy
    joins them. (Adding them to views of the vector would take two more passes over it: one clears
    it, and torch adds to a gradient that is there, where it keeps a new one as it is.)

    A vector is each parameter in turn, row by row, whatever the memory format of the module was.
    """

    def __init__(self, module: nn.Module, names: Sequence[str] | None = None) -> None:
        """
        Args:
            module: on its final device, with trainable parameters of float32.
            names: those of its trainable parameters in the whole network, if it is a part of one.

        Raises:
            ConfigError: there is no trainable parameter, or one is not float32; or a buffer cannot
                travel.
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
        """The trainable parameters by name, in the order of the vector."""
        self.size = sum(parameter.numel() for parameter in self._parameters)
        """P."""
        self._buffers = list(persistent_buffers(module))
        self.layout = BufferLayout({each.name: each.built for each in self._buffers}, self.size)
        refuse_misplaced(self._buffers, self._parameters)
        self.buffer_size = self.layout.size
        """Q."""
        device = self._parameters[0].device
        self.weights = torch.empty(self.size, device=device)  # (P,)
        for parameter, weights in zip(self._parameters, self._views(self.weights), strict=True):
            weights.copy_(parameter.detach())
            parameter.data = weights
        self.outgoing = torch.zeros(self.size + self.buffer_size, device=device)  # (P + Q,)

    @property
    def most_servers(self) -> int:
        """The largest number of servers that can share it: one a parameter, if none would have half
        a double.
        """
        pairs = (self.size + self.buffer_size) // 2
        return min(self.size, pairs) if self.layout.slots.doubles else self.size

    def move_weights(self, vector: Tensor) -> None:
        """Let `weights` be the beginning of another vector (P + Q,) of the same device, which gets
        the present ones, from now on.
        """
        before, self.weights = self.weights, vector[: self.size]
        self.weights.copy_(before)
        for parameter, weights in zip(self._parameters, self._views(self.weights), strict=True):
            parameter.data = weights

    @property
    def gradient(self) -> Tensor:
        """The gradient in `outgoing`, (P,)."""
        return self.outgoing[: self.size]

    def write_into(self, outgoing: Tensor) -> None:
        """Let the gradient, and the buffers behind it, be written into another vector (P + Q,) of
        the same device from now on; what it holds is overwritten.
        """
        self.outgoing = outgoing

    def _views(self, vector: Tensor) -> list[Tensor]:
        """Return the part of a vector (P,) that each parameter has, in its shape."""
        sizes = [parameter.numel() for parameter in self._parameters]
        return [
            part.view_as(parameter)
            for part, parameter in zip(torch.split(vector, sizes), self._parameters, strict=True)
        ]

    def begin_gradient(self) -> None:
        """Let the next backward passes add up from nothing; `outgoing` stays as it is."""
        for parameter in self._parameters:
            parameter.grad = None

    def check_buffers(self) -> None:
        """Check that forward passes have left the module the buffers that it was built with.

        Raises:
            ConfigError: one has another shape or type now, or is new; it is named.
        """
        check_kept(self.module, self._buffers)

    @torch.no_grad()
    def write_gradient(self) -> None:
        """Write what the backward passes have added up in `outgoing`, and the module's buffers
        behind it.
        """
        gradients = [_row(parameter) for parameter in self._parameters]
        torch.cat([*gradients, *self._buffer_rows()], out=self.outgoing)

    @torch.no_grad()
    def write_buffers(self) -> None:
        """Write the module's buffers behind the gradient in `outgoing`."""
        if self._buffers:
            torch.cat(self._buffer_rows(), out=self.outgoing[self.size :])

    def _buffer_rows(self) -> list[Tensor]:
        return self.layout.rows([buffer.read() for buffer in self._buffers])

    def read_weights(self, *parts: Tensor) -> None:
        """Take the parameters from a vector (P + Q,) of the server, in one or several parts; in
        none if they are in `weights` already. The buffers do not change.
        """
        offset = 0
        for part in parts:
            target = self.weights[offset : offset + len(part)]
            target.copy_(part[: len(target)])
            offset += len(part)

    def copy_weights(self, other: FlatModel) -> None:
        """Take the parameters of the same model on another device, once that has them."""
        self.weights.copy_(other.weights, non_blocking=True)

    @torch.no_grad()
    def read_buffers(self, incoming: Tensor) -> None:
        """Take the buffers from the end of a vector, such as one of the server, (P + Q,)."""
        for buffer, value in zip(self._buffers, self.layout.tensors(incoming), strict=True):
            buffer.write(value)

    def initial(self) -> Tensor:
        """Return parameters and buffers as one vector (P + Q,), on the device of the module."""
        return torch.cat([self.weights, self.buffers()])

    @torch.no_grad()
    def buffers(self) -> Tensor:
        """Return the module's buffers as a vector (Q,), which stays as it is."""
        return torch.cat([self.outgoing.new_empty(0), *self._buffer_rows()])


def _row(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of a parameter row by row; zeros if the loss does not depend on it."""
    gradient = parameter.grad
    if gradient is None:
        return parameter.new_zeros(parameter.numel())
    # an embedding's may be sparse
    return (gradient if gradient.layout is torch.strided else gradient.to_dense()).reshape(-1)
