"""A module whose parameters and gradients are views of two flat vectors.

Shape legend: P = trainable parameters, Q = elements of all buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raysync.errors import ConfigError
from raysync.training.parameter_groups import parameters_of


class FlatModel:
    """Wraps an nn.Module; its parameters become views of `weights`, their gradients views of
    `gradient`.

    One contiguous float32 vector travels each way:
        * to the server `outgoing`, (P + Q,): the gradient, and behind it the buffers (batch-norm
          statistics). Buffers are no gradients: the server keeps each live worker's latest and
          never steps on them.
        * from the server (P + Q,): parameters, and behind them the mean of the live workers'
          buffers. A worker keeps its own buffers (as in DistributedDataParallel without
          broadcasting); evaluation takes the means.
    """

    def __init__(self, module: nn.Module, names: Sequence[str] | None = None) -> None:
        """
        Args:
            module: on its final device, with trainable parameters of float32.
            names: those of its trainable parameters in the whole network, if it is a part of one.

        Raises:
            ConfigError: there is no trainable parameter, or one is not float32.
        """
        self.module = module
        self._parameters = [
            parameter for parameter in module.parameters() if parameter.requires_grad
        ]
        kept = module.state_dict()  # others, such as position ids, are the same in every process
        self._buffers = [buffer for name, buffer in module.named_buffers() if name in kept]
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
        self.buffer_size = sum(buffer.numel() for buffer in self._buffers)
        """Q."""
        device = self._parameters[0].device
        self.weights = torch.empty(self.size, device=device)  # (P,)
        self.outgoing = torch.zeros(self.size + self.buffer_size, device=device)  # (P + Q,)
        self.gradient = self.outgoing[: self.size]  # (P,)
        offset = 0
        for parameter in self._parameters:
            part = slice(offset, offset + parameter.numel())
            self.weights[part] = parameter.detach().reshape(-1)
            parameter.data = self.weights[part].view_as(parameter)
            parameter.grad = self.gradient[part].view_as(parameter)
            offset += parameter.numel()

    def write_into(self, outgoing: Tensor) -> None:
        """Let the gradient, and the buffers behind it, be written into another vector (P + Q,) of
        the same device from now on; what it holds is overwritten.
        """
        self.outgoing, self.gradient = outgoing, outgoing[: self.size]
        offset = 0
        for parameter in self._parameters:
            part = self.gradient[offset : offset + parameter.numel()]
            parameter.grad = part.view_as(parameter)
            offset += parameter.numel()

    def write_buffers(self) -> None:
        """Write the module's buffers behind the gradient in `outgoing`."""
        if self._buffers:
            torch.cat(
                [buffer.reshape(-1).float() for buffer in self._buffers],
                out=self.outgoing[self.size :],
            )

    def read_weights(self, *parts: Tensor) -> None:
        """Take the parameters from a vector (P + Q,) of the server, in one or several parts; the
        buffers do not change.
        """
        offset = 0
        for part in parts:
            target = self.weights[offset : offset + len(part)]
            target.copy_(part[: len(target)])
            offset += len(part)

    def read_buffers(self, incoming: Tensor) -> None:
        """Take the buffers from a vector (P + Q,) of the server."""
        offset = self.size
        for buffer in self._buffers:
            buffer.copy_(incoming[offset : offset + buffer.numel()].view_as(buffer))
            offset += buffer.numel()

    def initial(self) -> Tensor:
        """Return parameters and buffers as one vector (P + Q,), on the device of the module."""
        self.write_buffers()
        return torch.cat([self.weights, self.outgoing[self.size :]])
