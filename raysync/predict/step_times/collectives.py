"""The time in which a profiled rank does nothing but communicate: mostly it waits for other ranks.

Under DistributedDataParallel a step ends with an all-reduce, so every rank's step lasts as long as
that of the slowest. What a rank computes is the rest: without the time in which a collective runs
and no other work does. Work is what the GPU computes and copies; in a trace without GPU, the
operators of ATen.

What a collective is: what torch marks as one (it writes the collective's name, whatever the
backend), or what is called after a library of collectives, or after a collective.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from raysync.predict.step_times.trace_files import COLLECTIVE

Span = tuple[float, float]
"""Begin and end, in microseconds."""
LIBRARY = (
    # NCCL, and those called after it (RCCL, HCCL, XCCL, oneCCL, ncclx), but not: occlusion
    r"(?<![a-z])_?(?:[a-z]{0,3}ccl(?!u)"
    r"|(?:gloo|mpi|ucc|c10d|horovod|userbuffers)(?![a-z])|hcom_|nvshmem|cross_device_reduce)"
)
COLLECTIVES = (
    # reductions of one GPU's threads have such names, too
    r"(?<!warp)(?<!block)(?:all[-_ ]?(?:reduce|gather|to[-_ ]?all)|reduce[-_ ]?scatter)"
)
KERNEL = re.compile(f"{LIBRARY}|{COLLECTIVES}", re.IGNORECASE)
"""In the names of kernels: `ncclDevKernel_AllReduce...`, `hcom_allReduce__1`."""
RANGE = re.compile(
    rf"{LIBRARY}|{COLLECTIVES}"
    r"|^[\w.-]+:_?(?:broadcast|reduce|gather|scatter|send|recv|barrier)(?![a-z])",
    re.IGNORECASE,
)
"""In the names of other events: `gloo:all_reduce`, `c10d::allreduce_`, `mine:broadcast`."""
CALLS = ("python_function", "cuda_runtime", "cuda_driver")
"""What is called after that which it calls, but lasts longer or shorter."""
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
ON_CPU = "aten::"


def exposed_us(events: Iterable[dict[str, Any]], steps: Sequence[Span]) -> list[float]:
    """Return for how long each step only communicated, in microseconds.

    Args:
        events: of one rank, those that have a duration.
        steps: disjoint, in their order.
    """
    collectives: list[Span] = []
    kernels: list[Span] = []
    operators: list[Span] = []
    on_gpu = False
    for event in events:
        name, category = str(event.get("name")), event.get("cat")
        span = _span(event)
        if span is None:
            continue
        is_kernel = category in ON_GPU
        if _communicates(event, name, is_kernel):
            if is_kernel and not on_gpu:  # what the CPU does of it only starts it
                collectives, on_gpu = [], True
            if is_kernel or not on_gpu:
                collectives.append(span)
        elif is_kernel:
            kernels.append(span)
        elif name.startswith(ON_CPU):
            operators.append(span)
    exposed = _without(_merged(collectives), _merged(kernels or operators))
    return _lengths(exposed, steps)


def _communicates(event: dict[str, Any], name: str, is_kernel: bool) -> bool:
    if COLLECTIVE in event:
        return True
    if is_kernel:
        return bool(KERNEL.search(name))
    return (
        not name.startswith(ON_CPU) and event.get("cat") not in CALLS and bool(RANGE.search(name))
    )


def _span(event: dict[str, Any]) -> Span | None:
    begin, length = event.get("ts"), event.get("dur")
    if isinstance(begin, int | float) and isinstance(length, int | float) and length > 0:
        return begin, begin + length
    return None


def _merged(spans: list[Span]) -> list[Span]:
    """Return the union of spans, disjoint and in their order."""
    union: list[Span] = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((begin, end))
    return union


def _without(spans: Sequence[Span], others: Sequence[Span]) -> Iterator[Span]:
    """Yield what of disjoint spans no other one covers; both are in their order."""
    number = 0
    for begin, end in spans:
        while number < len(others) and others[number][1] <= begin:
            number += 1
        at, other = begin, number
        while other < len(others) and others[other][0] < end:
            if others[other][0] > at:
                yield at, others[other][0]
            at = max(at, others[other][1])
            other += 1
        if at < end:
            yield at, end


def _lengths(spans: Iterable[Span], steps: Sequence[Span]) -> list[float]:
    """Return the length of the part of spans that lies in each step."""
    begins = [begin for begin, _ in steps]
    lengths = [0.0] * len(steps)
    for begin, end in spans:
        number = max(0, bisect_right(begins, begin) - 1)
        while number < len(steps) and steps[number][0] < end:
            lengths[number] += max(0.0, min(end, steps[number][1]) - max(begin, steps[number][0]))
            number += 1
    return lengths
