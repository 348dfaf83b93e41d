"""The time in which a profiled rank does nothing but communicate: mostly it waits for other ranks.

Under DistributedDataParallel a step ends with an all-reduce, so every rank's step lasts as long as
the slowest one's. What a rank computes is the rest: without the time in which a collective runs
and no other work does. Work is what the GPU computes and copies; in a trace without GPU, the
operators of ATen.

An event is a collective if torch marks it as one (it writes the collective's name, whatever the
backend), or if its name has the name of a library of collectives, or of a collective.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from functools import lru_cache
from math import inf, isfinite
from typing import Literal, NamedTuple

import numpy as np

from raysync.predict.step_times.time_spans import Numbers, TimeSpans
from raysync.predict.step_times.trace_files import TraceEvent

# what torch writes among the `args` of a collective, with its size and its group
NAME = "Collective name"
LIBRARY = (
    # NCCL, and libraries with names like it (RCCL, HCCL, XCCL, oneCCL, ncclx), but not: occlusion
    r"(?<![a-z])_?(?:[a-z]{0,3}ccl(?!u)"
    r"|(?:gloo|mpi|ucc|c10d|horovod|userbuffers)(?![a-z])|hcom_|nvshmem|cross_device_reduce)"
)
COLLECTIVES = (
    # reductions of one GPU's threads have such names, too
    r"(?<!warp)(?<!block)(?:all[-_ ]?(?:reduce|gather|to[-_ ]?all)|reduce[-_ ]?scatter)"
)
# a collective in the name of a kernel: `ncclDevKernel_AllReduce...`, `hcom_allReduce__1`
KERNEL = re.compile(f"{LIBRARY}|{COLLECTIVES}", re.IGNORECASE)
# a collective in the name of another event: `gloo:all_reduce`, `mine:broadcast`
RANGE = re.compile(
    rf"{LIBRARY}|{COLLECTIVES}"
    r"|^[\w.-]+:_?(?:broadcast|reduce|gather|scatter|send|recv|barrier)(?![a-z])",
    re.IGNORECASE,
)
# what collectives are called that reduce nothing, unless it says `reduce`, too
NO_REDUCTION = re.compile(
    r"gather|scatter|broadcast|bcast|all_?to_?all|send|recv|barrier|permute", re.IGNORECASE
)
# categories of events that have the name of what they call, but last longer or shorter
CALLS = ("python_function", "cuda_runtime", "cuda_driver")
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
ON_CPU = "aten::"
# the bytes of an element, by both names that torch has for its type
BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8"), 1),
    **dict.fromkeys(("half", "bfloat16", "float16", "short", "int16"), 2),
    **dict.fromkeys(("float", "float32", "int", "int32"), 4),
    **dict.fromkeys(("double", "float64", "long", "int64"), 8),
}


class Group(NamedTuple):
    ranks: int  # how many; 0: the trace does not say it
    about: str  # its description; "": the trace does not say it


class Collective(NamedTuple):
    """What a collective does, and in which process group."""

    reduces: bool
    scatters: bool
    group: Group
    name: str  # the name of the group, which may be another one on other ranks; "": unknown

    @property
    def label(self) -> str:
        ranks, about = self.group
        return f"the process group {about or self.name or 'without a name'} of {ranks or '?'} ranks"


class DeviceActivity:
    def __init__(self) -> None:
        self.work, self.collectives = TimeSpans(), TimeSpans()
        # the begins in microseconds, and the bytes; 0: unknown
        self._moved: dict[Collective, tuple[array[float], array[float]]] = defaultdict(
            lambda: (array("d"), array("d"))
        )

    def add_collective(self, begin_us: float, us: float, name: str, marks: TraceEvent) -> None:
        self.collectives.add(begin_us, begin_us + us)
        begins, sizes = self._moved[_collective(name, marks)]
        begins.append(begin_us)
        sizes.append(_bytes(marks))

    @property
    def has_sizes(self) -> bool:
        return any(any(sizes) for _, sizes in self._moved.values())

    def moved_after(self, begins: Numbers) -> list[dict[Collective, float]]:
        """Return the bytes of each collective after each time, until the next."""
        moved: list[dict[Collective, float]] = [defaultdict(float) for _ in begins]
        for collective, (at, sizes) in self._moved.items():
            for step, size in zip(np.searchsorted(begins, at, side="right"), sizes, strict=True):
                if step:
                    moved[step - 1][collective] += size
        return moved


class Communication:
    """What a rank computes and communicates, on its GPU and its CPU."""

    def __init__(self) -> None:
        self._gpu, self._cpu = DeviceActivity(), DeviceActivity()

    def add(self, event: TraceEvent, us: float) -> None:
        category, name, begin_us = str(event.get("cat")), str(event.get("name")), event["ts"]
        device = self._gpu if category in ON_GPU else self._cpu
        args = event.get("args")
        marks = args if isinstance(args, dict) and NAME in args else {}
        kind = "collective" if marks else _kind(name, category)
        if kind == "collective":
            device.add_collective(begin_us, us, name, marks)
        elif kind == "work":
            device.work.add(begin_us, begin_us + us)

    def exposed_us(self, begins: Numbers, ends: Numbers) -> Numbers:
        """Return for how long a rank only communicated within each span."""
        # where there is a GPU, the CPU only starts its collectives and operators
        work = self._gpu.work or self._cpu.work
        both = work | (self._gpu.collectives or self._cpu.collectives)
        exposed: Numbers = both.within(begins, ends) - work.within(begins, ends)
        return exposed.round(3)  # to nanoseconds, since sums differ a little

    def moved_after(self, on_cpu: Numbers, on_gpu: Numbers) -> list[dict[Collective, float]]:
        """Return the bytes of each collective after each time, until the next; 0: unknown.

        Args:
            on_cpu: the times for collectives that are known by their launches alone.
            on_gpu: the times for those that run on a GPU.
        """
        if self._gpu.has_sizes or (self._gpu.collectives and not self._cpu.has_sizes):
            return self._gpu.moved_after(on_gpu)
        return self._cpu.moved_after(on_cpu)


@lru_cache(maxsize=10_000)
def _kind(name: str, category: str) -> Literal["collective", "work"] | None:
    if category in ON_GPU:
        return "collective" if KERNEL.search(name) else "work"
    if name.startswith(ON_CPU):
        return "work"
    return "collective" if category not in CALLS and RANGE.search(name) else None


def _collective(name: str, marks: TraceEvent) -> Collective:
    marked, ranks = str(marks.get(NAME, "")), marks.get("Group size")
    # torch may mark several together, or any barrier that the library makes of another collective
    name = marked if "reduce" in marked or NO_REDUCTION.search(marked) else name
    reduces = "reduce" in name.lower() or not NO_REDUCTION.search(name)
    group = Group(
        ranks=int(ranks) if isinstance(ranks, float) and isfinite(ranks) else 0,
        about=str(marks.get("Process Group Description") or ""),
    )
    scatters = reduces and "scatter" in name.lower()
    return Collective(reduces, scatters, group, str(marks.get("Process Group Name") or ""))


def _bytes(marks: TraceEvent) -> float:
    """Return the bytes that a rank puts into a collective; 0: they are unknown.

    A reduce-scatter has all that it reduces as its input.
    """
    kind, count = str(marks.get("dtype")).lower(), marks.get("In msg nelems")
    size = 1 if kind.startswith("float8") else BYTES.get(kind, 0)
    return count * size if isinstance(count, float) and 0 < count < inf else 0.0
