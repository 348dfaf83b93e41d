"""Feed a journal to a fresh machine: what was decided on the cluster must be decided again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from raysync.core.decisions import Decision
from raysync.core.journal import Ended, Entry, read
from raysync.core.machine import Machine
from raysync.core.paradigm import AnyParadigm
from raysync.core.stages import StageMachines, machine_of
from raysync.errors import ProtocolViolation

Rebuild = Callable[[str, dict[str, Any]], AnyParadigm]
"""From the class and the parameters that a header names to a fresh paradigm:
`raysync.paradigms.rebuild`."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay found."""

    machine: Machine | StageMachines
    events: int
    decisions: int
    difference: str | None
    """The first event that was answered otherwise, for a person; None if every decision was the
    same."""
    ended: bool
    """Whether the journal has its closing line; a killed run's has none, nor one that was cut
    off."""


def replay(lines: Iterable[str], rebuild: Rebuild) -> Replayed:
    """Replay a journal, up to its first difference.

    Raises:
        ConfigError: the text is no journal, or its paradigm cannot be built.
    """
    head, rest = read(lines)
    paradigm = rebuild(head["paradigm"]["class"], head["paradigm"]["parameters"])
    machine = machine_of(paradigm, head["workload_samples"])
    events = decisions = 0
    ended = False
    for line in rest:
        ended = isinstance(line, Ended)
        if not isinstance(line, Entry):
            continue
        events += 1
        answer: tuple[Decision, ...] | Exception
        try:
            answer = tuple(machine.handle(line.event))
        except (
            ProtocolViolation,
            AssertionError,
        ) as error:  # a history that this machine would not have made
            answer = error
        if answer != line.decisions:
            difference = (
                f"event {events}: {line.event}\n  recorded: {line.decisions}\n  replayed:"
                f" {answer!r}"
            )
            return Replayed(machine, events, decisions, difference, ended)
        decisions += len(line.decisions)
    return Replayed(machine, events, decisions, None, ended)
