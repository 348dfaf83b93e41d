"""The time in which a profiled rank does nothing but communicate: mostly it waits for other ranks.

Under DistributedDataParallel a step ends with an all-reduce, so every rank's step lasts as long as
that of the slowest. What a rank computes is the rest: without the time in which a collective runs
and no other work does. Work is what the GPU computes and copies; in a trace without GPU, the
operators of ATen.

An event is a collective if torch marks it as one (it writes the collective's name, whatever the
backend), or if its name has that of a library of collectives, or of a collective.
"""

from __future__ import annotations

import re
from functools import lru_cache
from math import isfinite
from typing import Literal

import numpy as np

from raysync.predict.step_times.time_spans import Numbers, TimeSpans
from raysync.predict.step_times.trace_files import TraceEvent

NAME = "Collective name"
"""What torch writes among the `args` of a collective, with its size."""
LIBRARY = (
    # NCCL, and libraries with names like it (RCCL, HCCL, XCCL, oneCCL, ncclx), but not: occlusion
    r"(?<![a-z])_?(?:[a-z]{0,3}ccl(?!u)"
    r"|(?:gloo|mpi|ucc|c10d|horovod|userbuffers)(?![a-z])|hcom_|nvshmem|cross_device_reduce)"
)
COLLECTIVES = (
    # reductions of one GPU's threads have such names, too
    r"(?<!warp)(?<!block)(?:all[-_ ]?(?:reduce|gather|to[-_ ]?all)|reduce[-_ ]?scatter)"
)
KERNEL = re.compile(f"{LIBRARY}|{COLLECTIVES}", re.IGNORECASE)
"""A collective in the name of a kernel: `ncclDevKernel_AllReduce...`, `hcom_allReduce__1`."""
RANGE = re.compile(
    rf"{LIBRARY}|{COLLECTIVES}"
    r"|^[\w.-]+:_?(?:broadcast|reduce|gather|scatter|send|recv|barrier)(?![a-z])",
    re.IGNORECASE,
)
"""A collective in the name of another event: `gloo:all_reduce`, `mine:broadcast`."""
CALLS = ("python_function", "cuda_runtime", "cuda_driver")
"""Categories of events that have the name of what they call, but last longer or shorter."""
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
ON_CPU = "aten::"
BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8"), 1),
    **dict.fromkeys(("half", "bfloat16", "float16", "short", "int16"), 2),
    **dict.fromkeys(("float", "float32", "int", "int32"), 4),
    **dict.fromkeys(("double", "float64", "long", "int64"), 8),
}
"""The bytes of an element, by both names that torch has for its type."""


class DeviceActivity:
    def __init__(self) -> None:
        self.work, self.collectives = TimeSpans(), TimeSpans()
        self.sizes: list[tuple[float, float]] = []
        """The begins of collectives in microseconds, and the bytes that they reduce."""


class Communication:
    """What a rank computes and communicates, on its GPU and its CPU."""

    def __init__(self) -> None:
        self._gpu, self._cpu = DeviceActivity(), DeviceActivity()

    def add(self, event: TraceEvent, us: float) -> None:
        category, args, begin_us = str(event.get("cat")), event.get("args"), event["ts"]
        device = self._gpu if category in ON_GPU else self._cpu
        kind = _kind(str(event.get("name")), category)
        if isinstance(args, dict) and NAME in args:
            kind, size = "collective", _reduced_bytes(args)
            if size is not None:
                device.sizes.append((begin_us, size))
        if kind == "collective":
            device.collectives.add(begin_us, begin_us + us)
        elif kind == "work":
            device.work.add(begin_us, begin_us + us)

    def exposed_us(self, begins: Numbers, ends: Numbers) -> Numbers:
        """Return for how long a rank only communicated within each span."""
        # where there is a GPU, the CPU only starts its collectives and operators
        work = self._gpu.work or self._cpu.work
        both = work | (self._gpu.collectives or self._cpu.collectives)
        exposed: Numbers = both.within(begins, ends) - work.within(begins, ends)
        return exposed.round(3)  # to nanoseconds, since sums differ a little

    def reduced_after(self, on_cpu: Numbers, on_gpu: Numbers) -> Numbers | None:
        """Return the bytes that are reduced after each time, until the next; None: unknown.

        Args:
            on_cpu: the times for collectives that are known by their launches alone.
            on_gpu: the times for those that run on a GPU.
        """
        sizes, begins = (self._gpu.sizes, on_gpu) if self._gpu.sizes else (self._cpu.sizes, on_cpu)
        if not sizes:
            return None
        at, size = np.array(sizes).T
        step = np.searchsorted(begins, at, side="right")
        return np.bincount(step, size, len(begins) + 1)[1:].astype(float)


@lru_cache(maxsize=10_000)
def _kind(name: str, category: str) -> Literal["collective", "work"] | None:
    if category in ON_GPU:
        return "collective" if KERNEL.search(name) else "work"
    if name.startswith(ON_CPU):
        return "work"
    return "collective" if category not in CALLS and RANGE.search(name) else None


def _reduced_bytes(args: TraceEvent) -> float | None:
    """Return the bytes that a collective reduces; None: it does not, or they are unknown.

    A reduce-scatter has them all as its input. What is gathered are weights.
    """
    kind = str(args.get("dtype")).lower()
    size = 1 if kind.startswith("float8") else BYTES.get(kind)
    count = args.get("In msg nelems")
    if "reduce" not in str(args[NAME]) or size is None or not isinstance(count, float):
        return None
    return count * size if isfinite(count) else None
