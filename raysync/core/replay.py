"""Feed a journal to a fresh machine: what was decided on the cluster must be decided again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raysync.core.decisions import Decision
from raysync.core.journal import Entry, read
from raysync.core.machine import Machine, rebuild
from raysync.core.modules import Modules, machine_of
from raysync.errors import ProtocolViolation


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay found."""

    machine: Machine | Modules
    events: int
    decisions: int
    difference: str | None
    """The first event that was answered otherwise, for a person; None if every decision was the same."""


def replay(lines: Iterable[str]) -> Replayed:
    """Replay a journal, up to its first difference.

    Raises:
        ConfigError: the text is no journal, or its paradigm cannot be imported.
    """
    head, rest = read(lines)
    machine = machine_of(rebuild(head["paradigm"]), head["workload_samples"])
    events = decisions = 0
    for line in rest:
        if not isinstance(line, Entry):
            continue
        events += 1
        answer: tuple[Decision, ...] | ProtocolViolation
        try:
            answer = tuple(machine.handle(line.event))
        except ProtocolViolation as violation:
            answer = violation
        if answer != line.decisions:
            difference = f"event {events}: {line.event}\n  recorded: {line.decisions}\n  replayed: {answer!r}"
            return Replayed(machine, events, decisions, difference)
        decisions += len(line.decisions)
    return Replayed(machine, events, decisions, None)
