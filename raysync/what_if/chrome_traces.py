"""Step times in traces of the Chrome format: those of torch's profiler, and Ray timelines.

torch   Events `ProfilerStep#N`, from one `prof.step()` to the next; a file a rank.
ray     A task's event has the category `task::Actor.method`; `task:execute` within it is the call
        itself, without the way of its arguments and results. All ranks are in one file.

Times in these files are microseconds.
"""

from __future__ import annotations

import gzip
import json
import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any, Literal

from raysync.config.traces import Steps, by_number
from raysync.errors import ConfigError, unknown_name
from raysync.what_if.collectives import exposed_us

JSON = (".json", ".json.gz")
PROFILER_STEP = re.compile(r"ProfilerStep#(\d+)")
TASK, EXECUTION = "task::", "task:execute"
US = 1e-6
NO_STEPS = (
    "it has no events ProfilerStep#N: give torch.profiler a schedule, and call prof.step() in the"
    " loop"
)
Event = dict[str, Any]


def traced_by(path: Path) -> Literal["torch", "ray"] | None:
    """Return what wrote a trace; None: something else.

    Raises:
        ConfigError: it is no trace.
    """
    for event in _spans(_load(path)):
        if PROFILER_STEP.fullmatch(str(event.get("name"))):
            return "torch"
        if str(event.get("cat")).startswith(TASK):
            return "ray"
    return None


def _load(path: Path) -> Any:
    """Read a trace: an object with `traceEvents`, or the list of these."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = json.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}).") from error
    except (ValueError, RecursionError, EOFError) as error:
        where = f"line {error.lineno}: " if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(f"{path}: {where}it is no trace ({error}).") from error
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise ConfigError(f"{path}: it is no trace: it has no list traceEvents.")
    return data


def _spans(data: Any) -> Iterator[Event]:
    """Yield the events that have a duration."""
    for event in data["traceEvents"] if isinstance(data, dict) else data:
        if isinstance(event, dict) and event.get("ph") == "X":
            yield event


def _seconds(event: Event, what: str) -> float:
    """Return the duration of an event.

    Raises:
        ConfigError: it is no duration.
    """
    us = event.get("dur")
    if isinstance(us, bool) or not isinstance(us, int | float) or not 0 < us < inf:
        raise ConfigError(f"{what} lasts {us!r} us; it must be above 0 and finite.")
    return us * US


@dataclass
class _Rank:
    """What the files of one rank have."""

    steps: dict[int, float] = field(default_factory=dict)
    """Number -> seconds, without those in which it only communicated."""
    origin: dict[int, Path] = field(default_factory=dict)
    """Number -> file."""
    communicated_s: float = 0.0
    """The seconds of its steps in which it only communicated."""


def read_profiles(paths: Sequence[Path]) -> tuple[Steps, tuple[str, ...]]:
    """Read the steps in traces of torch's profiler, without the time in which a rank only
    communicates (see `collectives`).

    A rank is known by the `distributedInfo` of its trace, otherwise by the name of its file. It may
    have several files, one for each time that the profiler was active.

    Returns:
        The seconds of each rank's steps, and remarks.

    Raises:
        ConfigError: ranks have other steps than the first one, or one is given twice.
    """
    ranks: dict[str, _Rank] = defaultdict(_Rank)
    for path in paths:  # one after the other: a trace can have hundreds of megabytes
        data = _load(path)
        _add(ranks[_rank(path, data)], path, data)
    found = {name: ranks[name].steps for name in sorted(ranks, key=by_number)}
    _check_equal(found)
    numbers = sorted(next(iter(found.values())))
    steps = {name: tuple(each[number] for number in numbers) for name, each in found.items()}
    return steps, (*_gaps(numbers), *_communication(ranks))


def _rank(path: Path, data: Any) -> str:
    info = data.get("distributedInfo") if isinstance(data, Mapping) else None
    rank = info.get("rank") if isinstance(info, Mapping) else None
    return path.name.partition(".")[0] if rank is None else f"rank{rank}"


def _add(rank: _Rank, path: Path, data: Any) -> None:
    """Add the steps in a file to those of its rank."""
    steps: dict[int, Event] = {}
    for event in _spans(data):
        match = PROFILER_STEP.fullmatch(str(event.get("name")))
        if match is None or str(event.get("cat")).startswith("gpu"):  # the GPU's part of a step
            continue
        number = int(match[1])
        if number in steps or number in rank.steps:
            before = "" if number in steps else f", first in {rank.origin[number]}"
            raise ConfigError(f"{path}: ProfilerStep#{number} is there twice{before}.")
        steps[number] = event
    if not steps:
        raise ConfigError(f"{path}: a trace, but {NO_STEPS}.")
    numbers = sorted(steps, key=lambda number: _begin(steps[number]))
    lengths = [_seconds(steps[n], f"{path}: ProfilerStep#{n}") for n in numbers]
    spans = [
        (_begin(steps[n]), _begin(steps[n]) + s / US) for n, s in zip(numbers, lengths, strict=True)
    ]
    exposed = exposed_us(_spans(data), spans)
    for number, seconds, only_us in zip(numbers, lengths, exposed, strict=True):
        rank.steps[number], rank.origin[number] = seconds - only_us * US, path
        rank.communicated_s += only_us * US
        if rank.steps[number] <= 0:
            raise ConfigError(f"{path}: ProfilerStep#{number} does nothing but communicate.")


def _communication(ranks: Mapping[str, _Rank]) -> Iterator[str]:
    shares = [
        rank.communicated_s / (rank.communicated_s + sum(rank.steps.values()))
        for rank in ranks.values()
    ]
    if max(shares) > 0:
        yield (
            f"Ranks did nothing but communicate for {min(shares):.0%} to {max(shares):.0%} of their"
            " time (NCCL, Gloo), mostly waiting for others: that is not in the step times."
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


def read_timeline(path: Path, method: str | None = None) -> tuple[Steps, str]:
    """Read the calls of a method in a Ray timeline (`ray timeline`, `ray.timeline()`).

    Args:
        path: the file.
        method: `Actor.method`, or a function; None: the only one that was called more often than
            there are processes that it ran in.

    Returns:
        The seconds of its calls by process, in their order, and the method.

    Raises:
        ConfigError: there is no such method, or several could be meant.
    """
    data = _load(path)
    tasks = [event for event in _spans(data) if str(event.get("cat")).startswith(TASK)]
    names = Counter(_method(event) for event in tasks)
    if method is None:
        method = _only_repeated(tasks, names)
    elif method not in names:
        raise unknown_name("method", method, names, where=f"{path}: --event")
    executions = _executions(data)
    calls: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in tasks:
        if _method(event) == method:
            calls[_process(event)].append(event)
    ordered = sorted(calls.items(), key=lambda item: min(map(_begin, item[1])))
    return {
        _called(process, number): tuple(
            _seconds(_execution(event, executions[process]), f"{path}: a call of {method}")
            for event in sorted(events, key=_begin)
        )
        for number, (process, events) in enumerate(ordered)
    }, method


def _method(event: Event) -> str:
    return str(event["cat"]).removeprefix(TASK)


def _begin(event: Event) -> float:
    at = event.get("ts")
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise ConfigError(
            f"a trace: {event.get('name')!r} begins at {at!r} us; a number is expected."
        )
    return at


def _process(event: Event) -> tuple[str, str]:
    return str(event.get("pid")), str(event.get("tid"))


def _called(process: tuple[str, str], number: int) -> str:
    """Name a process by its number, its node, and the beginning of its id in Ray."""
    node, worker = process
    return f"{number} ({node} {worker.rpartition(':')[2][:8]})"


def _only_repeated(tasks: Iterable[Event], names: Mapping[str, int]) -> str:
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


def _executions(data: Any) -> dict[tuple[str, str], list[Event]]:
    """Return process -> the executions of its tasks, in their order."""
    executions: dict[tuple[str, str], list[Event]] = defaultdict(list)
    for event in _spans(data):
        if event.get("cat") == EXECUTION:
            executions[_process(event)].append(event)
    for events in executions.values():
        events.sort(key=_begin)
    return executions


def _execution(task: Event, executions: Sequence[Event]) -> Event:
    """Return the execution within a task; without one, the task."""
    at = bisect_left(executions, _begin(task), key=_begin)
    if at < len(executions) and _begin(executions[at]) <= _begin(task) + task.get("dur", 0):
        return executions[at]
    return task
