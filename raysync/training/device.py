"""The device of one replica, and the copies between it and this process's memory."""

from __future__ import annotations

import torch
from torch import Tensor


class Device:
    """A CPU, where nothing is copied, or a GPU, whose copies go through pinned memory on a stream of their own.

    The batch and the weights of a step are on their way to the GPU together, while this thread goes on; computing waits for
    them on the GPU, not here.
    """

    def __init__(self, name: str) -> None:
        """`name`: as torch names it: `cpu`, `cuda:0`."""
        self.name = name
        self._copies = torch.cuda.Stream(name) if name.startswith("cuda") else None  # type: ignore[no-untyped-call]

    def seed(self, value: int) -> None:
        """Set the generator that dropout and the like draw from on this device."""
        if self._copies is None:
            torch.default_generator.manual_seed(value)  # torch.manual_seed asks every kind of device: 100 times as long
        else:
            with torch.cuda.device(self.name):
                torch.cuda.manual_seed(value)

    def upload(self, host: Tensor) -> Tensor:
        """A tensor of this process on the device; what is computed there next waits for it. On a CPU: itself."""
        if self._copies is None:
            return host
        computing = torch.cuda.current_stream(self.name)
        with torch.cuda.stream(self._copies):
            there = host.pin_memory().to(self.name, non_blocking=True)
        computing.wait_stream(self._copies)
        there.record_stream(computing)  # else its memory could be given away while it is still being read
        return there

    def download(self, there: Tensor) -> Tensor:
        """A tensor of the device in this process, once all that is computed up to now is done. On a CPU: itself."""
        if self._copies is None:
            return there
        self._copies.wait_stream(torch.cuda.current_stream(self.name))
        with torch.cuda.stream(self._copies):
            host = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
            host.copy_(there, non_blocking=True)
        self._copies.synchronize()
        return host
