"""A module whose parameters and gradients are those of two flat vectors.

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

    With `keeps_memory` the parameters and their gradients have memory of their own, in their own
    strides, and are copied from `weights` and to `gradient`. So the order of the vectors does not
    depend on how the parameters lie in memory: a vector is each parameter in turn, row by row.
    """

    def __init__(
        self, module: nn.Module, names: Sequence[str] | None = None, *, keeps_memory: bool = False
    ) -> None:
        """
        Args:
            module: on its final device, with trainable parameters of float32.
            names: those of its trainable parameters in the whole network, if it is a part of one.
            keeps_memory: whether its parameters keep the memory and the strides that they have.

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
        self._weights = self._views(self.weights)
        kept_by = self._parameters if keeps_memory else []
        self._own = [parameter.data for parameter in kept_by]
        """The parameters' own memory, if they keep it."""
        self._own_gradients = [torch.zeros_like(parameter) for parameter in kept_by]
        for parameter, weights in zip(self._parameters, self._weights, strict=True):
            weights.copy_(parameter.detach())
            if not keeps_memory:
                parameter.data = weights
        for parameter, gradient in zip(kept_by, self._own_gradients, strict=True):
            parameter.grad = gradient
        self.write_into(torch.zeros(self.size + self.buffer_size, device=device))  # (P + Q,)

    def write_into(self, outgoing: Tensor) -> None:
        """Let the gradient, and the buffers behind it, be written into another vector (P + Q,) of
        the same device from now on; what it holds is overwritten.
        """
        self.outgoing, self.gradient = outgoing, outgoing[: self.size]
        self._gradients = self._views(self.gradient)
        if not self._own:
            for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
                parameter.grad = gradient

    def _views(self, vector: Tensor) -> list[Tensor]:
        """Return the part of a vector (P,) that each parameter has, in its shape."""
        sizes = [parameter.numel() for parameter in self._parameters]
        return [
            part.view_as(parameter)
            for part, parameter in zip(torch.split(vector, sizes), self._parameters, strict=True)
        ]

    def clear_gradient(self) -> None:
        """Begin a gradient, which the backward passes to come add to."""
        if self._own:
            torch._foreach_zero_(self._own_gradients)
        else:
            self.gradient.zero_()

    def write_gradient(self) -> None:
        """Write what the backward passes have added up in `outgoing`, if it is not there already,
        and the module's buffers behind it.
        """
        if self._own:
            torch._foreach_copy_(self._gradients, self._own_gradients)
        self.write_buffers()

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
        self._place()

    def copy_weights(self, other: FlatModel) -> None:
        """Take the parameters of the same model on another device, once that has them."""
        self.weights.copy_(other.weights, non_blocking=True)
        self._place()

    def _place(self) -> None:
        """Copy the weights to where the parameters are, if that is elsewhere."""
        if self._own:
            torch._foreach_copy_(self._own, self._weights)

    def read_buffers(self, incoming: Tensor) -> None:
        """Take the buffers from the end of a vector, such as one of the server, (P + Q,)."""
        offset = len(incoming) - self.buffer_size
        for buffer in self._buffers:
            buffer.copy_(incoming[offset : offset + buffer.numel()].view_as(buffer))
            offset += buffer.numel()

    def initial(self) -> Tensor:
        """Return parameters and buffers as one vector (P + Q,), on the device of the module."""
        self.write_buffers()
        return torch.cat([self.weights, self.outgoing[self.size :]])
