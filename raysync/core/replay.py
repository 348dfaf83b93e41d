"""The replay of a journal: a fresh machine must repeat the run's decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from raysync.core.decisions import Decision
from raysync.core.journal import Ended, Entry, Resumed, read
from raysync.core.machine import Machine
from raysync.core.paradigm import AnyParadigm
from raysync.core.stages import StageMachines, machine_of
from raysync.errors import ProtocolViolation

# Builds a paradigm from a header's class and parameters: `raysync.paradigms.rebuild`.
Rebuild = Callable[[str, dict[str, Any]], AnyParadigm]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    machine: Machine | StageMachines
    events: int
    decisions: int
    difference: str | None  # the first event whose decisions differ, for a person
    ended: bool  # the journal has its closing line; without: a killed run, or a part


def replay(lines: Iterable[str], rebuild: Rebuild) -> Replayed:
    """Replay a journal up to its first difference.

    Raises:
        ConfigError: the text is no journal, or its paradigm cannot be built.
    """
    head, rest = read(lines)
    paradigm = rebuild(head.paradigm.reference, head.paradigm.parameters)
    machine = machine_of(paradigm, head.workload_samples, head.seed)
    events = decisions = 0
    ended = False
    for line in rest:
        ended = isinstance(line, Ended)
        if isinstance(line, Resumed) and not line.exact:
            machine.resume(line.at)
        if not isinstance(line, Entry):
            continue
        events += 1
        answer: tuple[Decision, ...] | Exception
        try:
            answer = tuple(machine.handle(line.event))
        except (ProtocolViolation, AssertionError) as error:  # an impossible history
            answer = error
        if answer != line.decisions:
            difference = (
                f"event {events}: {line.event}\n  recorded: {line.decisions}\n  replayed:"
                f" {answer!r}"
            )
            return Replayed(machine, events, decisions, difference, ended)
        decisions += len(line.decisions)
    return Replayed(machine, events, decisions, None, ended)
