"""Step times in a Horovod timeline, which rank 0 writes (`horovodrun --timeline-filename`).

Each tensor is a process (`pid`) of the trace. Between the begin and the end of its event
`NEGOTIATE_ALLREDUCE`, an event that is called by a rank's number says when that rank had computed
it; the events after that exchange it. So a rank computes from the end of the exchange of the step
before until it is ready with its last tensor. When the first step began is not known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from raysync.config.durations import Steps
from raysync.errors import ConfigError
from raysync.predict.step_times.trace_files import US, TraceEvent

NEGOTIATION = "NEGOTIATE_ALLREDUCE"


@dataclass
class _Exchange:
    ready_us: dict[int, float] = field(default_factory=dict)
    """Rank -> when it had computed the tensor."""
    ended_us: float = 0.0


class HorovodTimeline:
    def __init__(self) -> None:
        self.tensors: dict[str, list[_Exchange]] = defaultdict(list)
        self._open: dict[str, list[str]] = defaultdict(list)
        """Tensor -> the names of the events that have not ended."""

    def add(self, event: TraceEvent) -> None:
        """Add an event, in the order in which Horovod wrote them."""
        tensor, name = str(event.get("pid")), str(event.get("name"))
        open_events = self._open[tensor]
        if event["ph"] == "B":
            open_events.append(name)
            if name == NEGOTIATION:
                self.tensors[tensor].append(_Exchange())
        elif event["ph"] == "E" and open_events:
            ended = open_events.pop()
            if not open_events and ended != NEGOTIATION and self.tensors[tensor]:
                self.tensors[tensor][-1].ended_us = event["ts"]
        elif open_events[-1:] == [NEGOTIATION] and name.isdecimal() and len(name) < 10:
            self.tensors[tensor][-1].ready_us[int(name)] = event["ts"]

    def read(self, path: Path) -> tuple[Steps, dict[str, float]]:
        """Return each rank's computing seconds by step, but for the first, and the mean whole step.

        Raises:
            ConfigError: a rank was not ready for an exchange, or there are no two steps.
        """
        gradients, count = self._gradients(path)
        ranks = sorted({rank for each in gradients for step in each for rank in step.ready_us})
        steps: dict[str, list[float]] = {f"rank{rank}": [] for rank in ranks}
        exposed: dict[str, list[float]] = {f"rank{rank}": [] for rank in ranks}
        for number in range(1, count):
            began_us, ended_us = (
                max(each[at].ended_us for each in gradients) for at in (number - 1, number)
            )
            for rank in ranks:
                ready_us = max(_ready_us(each[number], rank, number, path) for each in gradients)
                if ready_us <= began_us:
                    raise ConfigError(
                        f"{path}: rank {rank} is ready for step {number} before step {number - 1}"
                        " has ended, so the exchanges do not mark steps."
                    )
                steps[f"rank{rank}"].append((ready_us - began_us) * US)
                exposed[f"rank{rank}"].append((ended_us - ready_us) * US)
        return (
            {rank: tuple(seconds) for rank, seconds in steps.items()},
            {rank: fmean(seconds) for rank, seconds in exposed.items()},
        )

    def _gradients(self, path: Path) -> tuple[list[list[_Exchange]], int]:
        """Return the whole exchanges of each gradient, and how many each of them has."""
        tensors = [[each for each in every if each.ended_us] for every in self.tensors.values()]
        tensors = [whole for whole in tensors if whole]
        if not tensors:
            raise ConfigError(f"{path}: a Horovod timeline without a whole exchange.")
        # a tensor that is exchanged more or less often than most, as a measure is, is no gradient
        count, _ = Counter(map(len, tensors)).most_common(1)[0]
        if count < 2:
            raise ConfigError(
                f"{path}: a Horovod timeline, but no gradient has two {NEGOTIATION}: Horovod's"
                " cache of responses may leave them out (HOROVOD_CACHE_CAPACITY=0)."
            )
        return [each for each in tensors if len(each) == count], count


def _ready_us(exchange: _Exchange, rank: int, number: int, path: Path) -> float:
    if rank not in exchange.ready_us:
        raise ConfigError(f"{path}: rank {rank} was not ready for step {number}.")
    return exchange.ready_us[rank]
