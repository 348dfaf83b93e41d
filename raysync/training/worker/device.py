"""The device of one replica, and the copies between it and this process's memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raysync.errors import ConfigError


def use_tf32(allowed: bool) -> None:
    """Set whether GPUs may round the factors of float32 products to TF32, in this process and from
    now on.

    torch's own default is yes for convolutions and no for matrices, so `float32` would mean one
    thing on GPUs since Ampere and another on older ones. On a CPU this changes nothing.
    """
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed


def use_deterministic_kernels() -> None:
    """Let GPUs compute the same bits each time, from now on, where torch has kernels that do; of
    others it warns.

    Products of matrices need the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8, too, which a
    process must have from its start.
    """
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.use_deterministic_algorithms(True, warn_only=True)


def try_kernels(tries: bool) -> None:
    """Set whether cuDNN tries its kernels for a convolution of shapes that it has not met, and
    takes the fastest from then on, where it would otherwise guess; not where kernels have to be
    deterministic.

    Trying takes longer than many steps. So it is for the batch size that a worker has all the time,
    and is warm for: a step of another size would look slow, to a paradigm that sets the sizes by
    how long steps take.
    """
    torch.backends.cudnn.benchmark = tries and not torch.backends.cudnn.deterministic


def refuse_without_kernels(name: str) -> None:
    """Check that this torch can compute on a GPU.

    Raises:
        ConfigError: torch was built for other GPUs.
    """
    capability, built_for = torch.cuda.get_device_capability(name), torch.cuda.get_arch_list()
    if torch.version.cuda is not None and not has_kernels(capability, built_for):
        raise ConfigError(
            f"gpus: torch {torch.__version__} has no code for {torch.cuda.get_device_name(name)},"
            f" of compute capability {'.'.join(map(str, capability))}; it was built for"
            f" {', '.join(built_for)}. Install a build for an older CUDA (torch's cu126 reaches"
            " back to 5.0), or set gpus: 0."
        )


def has_kernels(capability: tuple[int, int], built_for: Sequence[str]) -> bool:
    """Say whether a GPU can run the code that torch was built with.

    Args:
        capability: the compute capability of the GPU, (major, minor).
        built_for: torch's list: machine code, `sm_86`, runs on GPUs of the same major number and no
            smaller minor one; `compute_86`, which is translated on the GPU's machine, on all GPUs
            that are not older. An empty list means unknown.
    """
    for name in built_for:
        kind, _, number = name.partition("_")
        built = divmod(int(number.rstrip("af")), 10)
        if built <= capability and (kind == "compute" or built[0] == capability[0]):
            return True
    return not built_for


def seconds_between(begin: torch.cuda.Event | None, end: torch.cuda.Event | None) -> float:
    """Return the seconds between two marks of a device that has passed both; 0 on a CPU."""
    return 0.0 if begin is None or end is None else begin.elapsed_time(end) / 1000


def limit_memory(name: str, share: float) -> None:
    """Let this process take no more than its share of a GPU's memory, where several share one: so
    the one that needs too much is the one that runs out of it.

    Args:
        name: the device as torch names it.
        share: the share of the device that the process has been given; from 1 on there is no limit.
    """
    if name.startswith("cuda") and share < 1:
        torch.cuda.set_per_process_memory_fraction(share, name)


class Device:
    """A CPU, where nothing is copied, or a GPU, whose copies go through pinned memory on a stream
    of their own.

    The batch and the weights of a step travel to the GPU together, while this thread continues; the
    computation waits for them on the GPU, not here.
    """

    def __init__(self, name: str) -> None:
        """`name`: the device as torch names it, `cpu` or `cuda:0`."""
        self.name = name
        self._copies = torch.cuda.Stream(name) if name.startswith("cuda") else None  # type: ignore[no-untyped-call]

    @property
    def copies(self) -> bool:
        """Whether it has memory of its own, so that vectors are copied to and from it."""
        return self._copies is not None

    def mark(self) -> torch.cuda.Event | None:
        """Return the moment at which the device has done all that it was given to compute so far;
        None on a CPU, which computes while one waits.
        """
        if self._copies is None:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.name))
        return event

    def seed(self, value: int) -> None:
        """Set the generator that dropout and the like draw from on this device."""
        if self._copies is None:
            # torch.manual_seed seeds every kind of device, and takes 100 times as long
            torch.default_generator.manual_seed(value)
        else:
            torch.default_generator.manual_seed(value)  # some models draw on the CPU, too
            with torch.cuda.device(self.name):
                torch.cuda.manual_seed(value)

    def upload(self, host: Tensor) -> Tensor:
        """Copy a tensor of this process to the device; what is computed there next waits for it. On
        a CPU the tensor itself is returned, and so is one that is on a device already.
        """
        if self._copies is None or host.device.type != "cpu":
            return host
        computing = torch.cuda.current_stream(self.name)
        with torch.cuda.stream(self._copies):
            copy = host.pin_memory().to(self.name, non_blocking=True)
        computing.wait_stream(self._copies)
        # Else its memory could be reused while it is still being read.
        copy.record_stream(computing)
        return copy

    def download(self, tensor: Tensor) -> Tensor:
        """Copy a tensor of the device to this process, once all computations so far are done. On a
        CPU the tensor itself is returned.
        """
        if self._copies is None:
            return tensor
        self._copies.wait_stream(torch.cuda.current_stream(self.name))
        with torch.cuda.stream(self._copies):
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
        self._copies.synchronize()
        return host
