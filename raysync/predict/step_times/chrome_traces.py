"""Step times in traces of the Chrome format: those of torch's profiler, and Ray timelines.

torch   Events `ProfilerStep#N`, from one `prof.step()` to the next; a file a rank.
ray     A task's event has the category `task::Actor.method`; `task:execute` within it is the call
        itself, without the way of its arguments and results. All ranks are in one file.

Times in these files are microseconds.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Literal

from raysync.config.durations import Steps, by_number
from raysync.errors import ConfigError, unknown_name
from raysync.predict.step_times.collectives import exposed_us
from raysync.predict.step_times.horovod_timeline import is_negotiation
from raysync.predict.step_times.trace_files import TraceEvent, TraceFile, begin_us

PROFILER_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
TASK, EXECUTION = "task::", "task:execute"
US = 1e-6
NO_STEPS = (
    "it has no events ProfilerStep#N: give torch.profiler a schedule, and call prof.step() in the"
    " loop"
)
LITTLE = 0.01
"""So small a share of the time taken off a step says that communication was not recognised."""


def traced_by(trace: TraceFile) -> Literal["torch", "ray", "horovod"] | None:
    """Return what wrote a trace; None: something else."""
    for event in trace.events:
        if PROFILER_STEP.fullmatch(str(event.get("name"))):
            return "torch"
        if str(event.get("cat")).startswith(TASK):
            return "ray"
        if is_negotiation(event):
            return "horovod"
    return None


def _seconds(event: TraceEvent, what: str) -> float:
    """Return the duration of an event.

    Raises:
        ConfigError: it is no duration.
    """
    us = event.get("dur")
    if not isinstance(us, float) or not 0 < us < inf:
        given = f"{us:g}" if isinstance(us, float) else repr(us)
        raise ConfigError(f"{what} lasts {given} us; it must be above 0 and finite.")
    return us * US


@dataclass(frozen=True)
class Profiles:
    """The step times in traces of torch's profiler."""

    steps: Steps
    remarks: tuple[str, ...]
    may_wait: bool
    """Whether hardly anything was found in which ranks wait for each other."""


@dataclass
class _Rank:
    """What the files of one rank have."""

    steps: dict[int, float] = field(default_factory=dict)
    """Number -> seconds, without those in which it only communicated."""
    origin: dict[int, Path] = field(default_factory=dict)
    """Number -> file."""
    communicated_s: float = 0.0
    """The seconds of its steps in which it only communicated."""


def read_profiles(traces: Iterable[TraceFile], names: Mapping[Path, str]) -> Profiles:
    """Read the steps in traces of torch's profiler, without the time in which a rank only
    communicates (see `collectives`).

    A rank is known by the `distributedInfo` of its trace, otherwise by the name of its file. It may
    have several files, one for each time that the profiler was active.

    Args:
        traces: are read one after the other, since one can have hundreds of megabytes.
        names: file -> the rank by its name.

    Raises:
        ConfigError: ranks have other steps than the first one, or one is given twice.
    """
    ranks: dict[str, _Rank] = defaultdict(_Rank)
    for trace in traces:
        rank = names[trace.path] if trace.rank is None else f"rank{trace.rank}"
        _add(ranks[rank], rank, trace)
    found = {name: ranks[name].steps for name in sorted(ranks, key=by_number)}
    _check_equal(found)
    numbers = sorted(next(iter(found.values())))
    steps = {name: tuple(each[number] for number in numbers) for name, each in found.items()}
    shares = [
        rank.communicated_s / (rank.communicated_s + sum(rank.steps.values()))
        for rank in ranks.values()
    ]
    return Profiles(steps, (*_gaps(numbers), *_communication(shares)), max(shares) < LITTLE)


def _add(rank: _Rank, name: str, trace: TraceFile) -> None:
    """Add the steps in a file to those of its rank."""
    path = trace.path
    steps: dict[int, TraceEvent] = {}
    for event in trace.spans():
        match = PROFILER_STEP.fullmatch(str(event.get("name")))
        if match is None or str(event.get("cat")).startswith("gpu"):  # the GPU's part of a step
            continue
        number = int(match[1])
        if number in rank.steps:
            raise ConfigError(
                f"{path}: ProfilerStep#{number} is there twice, first in {rank.origin[number]}: by"
                f" their names, or what they say, both are of {name}. Name each file after its"
                " rank: rank0.json, rank1.json."
            )
        if number in steps:
            raise ConfigError(f"{path}: ProfilerStep#{number} is there twice.")
        steps[number] = event
    if not steps:
        raise ConfigError(f"{path}: a trace, but {NO_STEPS}.")
    numbers = sorted(steps, key=lambda number: begin_us(steps[number]))
    lengths = [_seconds(steps[n], f"{path}: ProfilerStep#{n}") for n in numbers]
    begins = [begin_us(steps[n]) for n in numbers]
    spans = [(at, at + seconds / US) for at, seconds in zip(begins, lengths, strict=True)]
    exposed = exposed_us(trace.spans(), spans)
    for number, seconds, only_us in zip(numbers, lengths, exposed, strict=True):
        rank.steps[number], rank.origin[number] = seconds - only_us * US, path
        rank.communicated_s += only_us * US
        if rank.steps[number] <= 0:
            raise ConfigError(f"{path}: ProfilerStep#{number} does nothing but communicate.")


def _communication(shares: Sequence[float]) -> Iterator[str]:
    if max(shares) > 0:
        yield (
            f"Ranks did nothing but communicate for {min(shares):.0%} to {max(shares):.0%} of their"
            " time, mostly waiting for others: that is not in the step times."
        )


def _check_equal(ranks: Mapping[str, Mapping[int, float]]) -> None:
    everything = set().union(*ranks.values())
    for name, steps in ranks.items():
        if missing := sorted(everything - steps.keys()):
            other = next(each for each, its in ranks.items() if missing[0] in its)
            raise ConfigError(
                f"{name}: ProfilerStep#{missing[0]} is missing, which {other} has; profile all"
                " ranks with the same schedule."
            )


def _gaps(numbers: Sequence[int]) -> Iterator[str]:
    gaps = sum(after != before + 1 for before, after in pairwise(numbers))
    if gaps:
        yield (
            f"The profiler paused {gaps} time{'s' * (gaps > 1)} between steps {numbers[0]} and"
            f" {numbers[-1]}: the steps around a pause are taken to follow each other."
        )


def read_timeline(trace: TraceFile, method: str | None = None) -> tuple[Steps, str]:
    """Read the calls of a method in a Ray timeline (`ray timeline`, `ray.timeline()`).

    Args:
        trace: the file.
        method: `Actor.method`, or a function; None: the only one that was called more often than
            there are processes that it ran in.

    Returns:
        The seconds of its calls by process, in their order, and the method.

    Raises:
        ConfigError: there is no such method, or several could be meant.
    """
    path = trace.path
    tasks = [event for event in trace.spans() if str(event.get("cat")).startswith(TASK)]
    names = Counter(_method(event) for event in tasks)
    if method is None:
        method = _only_repeated(tasks, names)
    elif method not in names:
        raise unknown_name("method", method, names, where=f"{path}: --event")
    executions = _executions(trace)
    calls: dict[tuple[str, str], list[TraceEvent]] = defaultdict(list)
    for event in tasks:
        if _method(event) == method:
            calls[_process(event)].append(event)
    ordered = sorted(calls.items(), key=lambda item: min(map(begin_us, item[1])))
    return {
        _called(process, number): tuple(
            _seconds(_execution(event, executions[process]), f"{path}: a call of {method}")
            for event in sorted(events, key=begin_us)
        )
        for number, (process, events) in enumerate(ordered)
    }, method


def _method(event: TraceEvent) -> str:
    return str(event["cat"]).removeprefix(TASK)


def _process(event: TraceEvent) -> tuple[str, str]:
    return str(event.get("pid")), str(event.get("tid"))


def _called(process: tuple[str, str], number: int) -> str:
    """Name a process by its number, its node, and the beginning of its id in Ray."""
    node, worker = process
    return f"{number} ({node} {worker.rpartition(':')[2][:8]})"


def _only_repeated(tasks: Iterable[TraceEvent], names: Mapping[str, int]) -> str:
    processes: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for event in tasks:
        processes[_method(event)].add(_process(event))
    repeated = [name for name, count in names.items() if count > len(processes[name])]
    if len(repeated) == 1:
        return repeated[0]
    listed = ", ".join(
        f"{name} ({names[name]:,} calls in {len(processes[name])} processes)"
        for name in sorted(repeated or names)
    )
    raise ConfigError(f"Which calls are the steps? Say --event METHOD.\nThere are: {listed}.")


def _executions(trace: TraceFile) -> dict[tuple[str, str], list[TraceEvent]]:
    """Return process -> the executions of its tasks, in their order."""
    executions: dict[tuple[str, str], list[TraceEvent]] = defaultdict(list)
    for event in trace.spans():
        if event.get("cat") == EXECUTION:
            executions[_process(event)].append(event)
    for events in executions.values():
        events.sort(key=begin_us)
    return executions


def _execution(task: TraceEvent, executions: Sequence[TraceEvent]) -> TraceEvent:
    """Return the execution within a task; without one, the task."""
    at, us = bisect_left(executions, begin_us(task), key=begin_us), task.get("dur")
    ended_us = begin_us(task) + (us if isinstance(us, float) else 0.0)
    if at < len(executions) and begin_us(executions[at]) <= ended_us:
        return executions[at]
    return task
