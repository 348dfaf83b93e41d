"""Step times in a Horovod timeline, which rank 0 writes (`horovodrun --timeline-filename`).

Each tensor is a process (`pid`) of the trace. Between the begin and the end of its event
`NEGOTIATE_ALLREDUCE`, an event that is called by a rank's number says when that rank had computed
it; the events after that exchange it. So a rank computes from the end of the exchange of the step
before until it is ready with its last tensor. When the first step began is not known.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raysync.config.durations import Steps
from raysync.errors import ConfigError
from raysync.predict.step_times.trace_files import TraceEvent, TraceFile, begin_us

NEGOTIATION = "NEGOTIATE_ALLREDUCE"
US = 1e-6


@dataclass
class _Exchange:
    """One exchange of a tensor."""

    ready_us: dict[int, float] = field(default_factory=dict)
    """Rank -> when it had computed the tensor."""
    ended_us: float = 0.0


def is_negotiation(event: TraceEvent) -> bool:
    """Say whether only Horovod writes such an event."""
    return event["ph"] == "B" and event.get("name") == NEGOTIATION


def read_horovod(trace: TraceFile) -> Steps:
    """Read the seconds that each rank computes in each step but the first one.

    Raises:
        ConfigError: a rank was not ready for an exchange, or there are no two steps.
    """
    tensors = _exchanges(trace)
    if not tensors:
        raise ConfigError(f"{trace.path}: a Horovod timeline without a whole exchange.")
    # what is exchanged more or less often than most tensors, as a measure, is no gradient
    usual, _ = Counter(map(len, tensors.values())).most_common(1)[0]
    gradients = [each for each in tensors.values() if len(each) == usual]
    if usual < 2:
        raise ConfigError(
            f"{trace.path}: a Horovod timeline, but no gradient has two {NEGOTIATION}: Horovod's"
            " cache of responses may leave them out (HOROVOD_CACHE_CAPACITY=0)."
        )
    ranks = sorted({rank for each in gradients for exchange in each for rank in exchange.ready_us})
    steps: dict[str, list[float]] = {f"rank{rank}": [] for rank in ranks}
    for number in range(1, usual):
        began_us = max(each[number - 1].ended_us for each in gradients)
        for rank in ranks:
            ready_us = max(_ready_us(each[number], rank, number, trace) for each in gradients)
            if ready_us <= began_us:
                raise ConfigError(
                    f"{trace.path}: rank {rank} is ready for step {number} before step"
                    f" {number - 1} has ended: the exchanges are not those of steps."
                )
            steps[f"rank{rank}"].append((ready_us - began_us) * US)
    return {rank: tuple(seconds) for rank, seconds in steps.items()}


def _ready_us(exchange: _Exchange, rank: int, number: int, trace: TraceFile) -> float:
    if rank not in exchange.ready_us:
        raise ConfigError(f"{trace.path}: rank {rank} was not ready for step {number}.")
    return exchange.ready_us[rank]


def _exchanges(trace: TraceFile) -> Mapping[str, Sequence[_Exchange]]:
    """Return tensor -> its exchanges, in their order; one that the file cuts off is left out."""
    tensors: dict[str, list[_Exchange]] = defaultdict(list)
    open_events: dict[str, list[str]] = defaultdict(list)
    for event in trace.events:  # in the order in which Horovod wrote them
        tensor, name = str(event.get("pid")), str(event.get("name"))
        within = open_events[tensor]
        if event["ph"] == "B":
            within.append(name)
            if name == NEGOTIATION:
                tensors[tensor].append(_Exchange())
        elif event["ph"] == "E" and within:
            ended = within.pop()
            if not within and ended != NEGOTIATION and tensors[tensor]:
                tensors[tensor][-1].ended_us = begin_us(event)
        elif within[-1:] == [NEGOTIATION] and name.isdecimal() and len(name) < 10:
            tensors[tensor][-1].ready_us[int(name)] = begin_us(event)
    return {
        tensor: whole
        for tensor, exchanges in tensors.items()
        if (whole := [each for each in exchanges if each.ended_us])
    }
