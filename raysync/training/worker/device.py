"""The device of one replica, and the copies between it and the process's memory."""

from __future__ import annotations

import random  # noqa: TID251  (a user's loss draws from it, seeded for each batch)
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysync.errors import ConfigError


class Device:
    """A CPU, without copies, or a GPU, which copies through pinned memory on its own stream.

    A step's batch and weights travel while this thread continues; the computation waits on the GPU.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._copy_stream = torch.cuda.Stream(name) if name.startswith("cuda") else None  # type: ignore[no-untyped-call]

    @property
    def is_gpu(self) -> bool:
        return self._copy_stream is not None

    def mark(self) -> torch.cuda.Event | None:
        """Return the moment when all computations so far are done; None on a synchronous CPU."""
        if self._copy_stream is None:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.name))
        return event

    def seed(self, value: int) -> None:
        """Seed the generators of dropout and other draws on this device and on the CPU."""
        # torch.manual_seed seeds every kind of device, and takes 100 times as long
        torch.default_generator.manual_seed(value)
        np.random.seed(value % 2**32)
        random.seed(value)
        if self._copy_stream is not None:
            with torch.cuda.device(self.name):
                torch.cuda.manual_seed(value)

    def upload(self, host: Any) -> Any:
        """Copy a tensor to the device; later computations wait for it. A CPU copies nothing."""
        if self._copy_stream is None:
            return host
        if not isinstance(host, Tensor):  # an object of the user's, which moves itself
            return host.to(self.name)
        if host.device.type != "cpu":
            return host
        computing = torch.cuda.current_stream(self.name)
        with torch.cuda.stream(self._copy_stream):
            copy = host.pin_memory().to(self.name, non_blocking=True)
        computing.wait_stream(self._copy_stream)
        # else its memory could be reused while it is still being read
        copy.record_stream(computing)
        return copy

    def download(self, tensor: Tensor) -> Tensor:
        """Copy a tensor from the device after all computations so far. A CPU copies nothing."""
        if self._copy_stream is None:
            return tensor
        self._copy_stream.wait_stream(torch.cuda.current_stream(self.name))
        with torch.cuda.stream(self._copy_stream):
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
        self._copy_stream.synchronize()
        return host

    def read_later(self, numbers: Tensor) -> Callable[[], list[float]]:
        """Return a function that waits for numbers of this device, and nothing after them."""
        if self._copy_stream is None:
            return numbers.tolist
        host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        host.copy_(numbers, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(self.name))

        def read() -> list[float]:
            copied.synchronize()
            return host.tolist()

        return read


def use_tf32(allowed: bool) -> None:
    """Set for this process whether GPUs may round the factors of float32 products to TF32."""
    # torch's default is yes for convolutions and no for matrices, so `float32` would mean one thing
    # on GPUs since Ampere and another on older ones
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed


def use_deterministic_kernels() -> None:
    """Let GPUs compute the same bits each time where torch can; it warns elsewhere."""
    # products of matrices need CUBLAS_WORKSPACE_CONFIG=:4096:8, too, from the process's start
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.use_deterministic_algorithms(True, warn_only=True)


def try_kernels(tries: bool) -> None:
    """Set whether cuDNN tries its kernels for each new convolution shape and keeps the fastest.

    Only for a worker's permanent batch size: trying takes longer than many steps, so other sizes
    would look slow to a paradigm that sets sizes by step times.
    """
    torch.backends.cudnn.benchmark = tries and not torch.backends.cudnn.deterministic


def limit_memory(name: str, share: float) -> None:
    """Limit this process to its share of a GPU's memory, so that others do not run out of it."""
    if name.startswith("cuda") and share < 1:
        torch.cuda.set_per_process_memory_fraction(share, name)


def refuse_without_kernels(name: str) -> None:
    """Refuse a GPU that this torch was not built for."""
    capability, built_for = torch.cuda.get_device_capability(name), torch.cuda.get_arch_list()
    if torch.version.cuda is not None and not has_kernels(capability, built_for):
        raise ConfigError(
            f"gpus: torch {torch.__version__} has no code for {torch.cuda.get_device_name(name)},"
            f" of compute capability {'.'.join(map(str, capability))}; it was built for"
            f" {', '.join(built_for)}. Install a build for an older CUDA (torch's cu126 reaches"
            " back to 5.0), or set gpus: 0."
        )


def has_kernels(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Whether a GPU of a capability (major, minor) runs code of torch's list; empty: unknown."""
    for name in built_for:
        kind, _, number = name.partition("_")
        built = divmod(int(number.rstrip("af")), 10)
        # `sm_86` runs on the same major number, `compute_86`, translated there, on all newer GPUs
        if built <= capability and (kind == "compute" or built[0] == capability[0]):
            return True
    return not built_for


def seconds_between(begin: torch.cuda.Event | None, end: torch.cuda.Event | None) -> float:
    """Return the seconds between two passed marks of a device; 0 on a CPU."""
    return 0.0 if begin is None or end is None else begin.elapsed_time(end) / 1000
