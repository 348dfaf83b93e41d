"""Step times in a Ray timeline (`ray timeline`, `ray.timeline()`), which has all ranks.

A task's event has the category `task::Actor.method`; `task:execute` within it is the call itself,
without the way of its arguments and results.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from raysync.config.durations import Steps
from raysync.errors import ConfigError, unknown_name
from raysync.predict.step_times.trace_files import TraceEvent, seconds_of

TASK, EXECUTION = "task::", "task:execute"
RankProcess = tuple[str, str]  # a node, and the process of a worker on it
FIELDS = ("ts", "dur")


class RayTimeline:
    def __init__(self) -> None:
        # method -> process -> the events of its tasks
        self.calls: dict[str, dict[RankProcess, list[TraceEvent]]] = defaultdict(
            lambda: defaultdict(list)
        )
        self._executions: dict[RankProcess, list[TraceEvent]] = defaultdict(list)

    def add(self, event: TraceEvent) -> None:
        category, process = str(event["cat"]), (str(event.get("pid")), str(event.get("tid")))
        fields = {key: event.get(key) for key in FIELDS}
        if category == EXECUTION:
            self._executions[process].append(fields)
        elif category.startswith(TASK):
            self.calls[category.removeprefix(TASK)][process].append(fields)

    def read(self, path: Path, method: str | None = None) -> tuple[Steps, str]:
        """Return the seconds of a method's calls by process, in their order, and the method.

        Args:
            path: of the timeline.
            method: `Actor.method`, or a function; None: the only one that was called more often
                than there are processes that it ran in.

        Raises:
            ConfigError: there is no such method, or several could be meant.
        """
        if method is None:
            method = self._only_repeated_method()
        elif method not in self.calls:
            counts = {name: len(calls) for name, calls in self.calls.items()}
            raise unknown_name("method", method, counts, where=f"{path}: --event")
        for events in (*self._executions.values(), *self.calls[method].values()):
            events.sort(key=_begin_us)
        ordered = sorted(self.calls[method].items(), key=lambda item: item[1][0]["ts"])
        return {
            f"{number} ({node} {worker.rpartition(':')[2][:8]})": tuple(
                seconds_of(
                    _execution(task, self._executions[node, worker]), f"{path}: a call of {method}"
                )
                for task in tasks
            )
            for number, ((node, worker), tasks) in enumerate(ordered)
        }, method

    def _only_repeated_method(self) -> str:
        counts = {name: sum(map(len, calls.values())) for name, calls in self.calls.items()}
        repeated = [name for name, count in counts.items() if count > len(self.calls[name])]
        if len(repeated) == 1:
            return repeated[0]
        listed = ", ".join(
            f"{name} ({counts[name]:,} calls in {len(self.calls[name])} processes)"
            for name in sorted(repeated or counts)
        )
        raise ConfigError(f"Which calls are the steps? Say --event METHOD.\nThere are: {listed}.")


def _begin_us(event: TraceEvent) -> float:
    return float(event["ts"])


def _execution(task: TraceEvent, executions: Sequence[TraceEvent]) -> TraceEvent:
    """Return the execution within a task; without one, the task."""
    at, us = bisect_left(executions, task["ts"], key=_begin_us), task["dur"]
    ended_us = task["ts"] + (us if isinstance(us, float) else 0.0)
    if at < len(executions) and executions[at]["ts"] <= ended_us:
        return executions[at]
    return task
