"""What must hold of the journal of any run, however often it was struck and resumed.

The counts are made of the journal's own lines, and not taken from the roster of a replay, whose
bookkeeping would always add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from raysync.core.decisions import Apply, Drop, Push
from raysync.core.events import Pushed
from raysync.core.journal import Entry, Line, read
from raysync.core.machine import Machine
from raysync.core.replay import Rebuild, Replayed, replay
from raysync.core.stages import StageMachines

REPLAY = "replay decides the same"
CONSERVATION = "received = applied + dropped + buffered"
VERSIONS = "versions without gaps"
ONCE = "each push once"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of one oracle."""

    oracle: str
    """What must hold."""
    failure: str = ""
    """Where it does not hold; empty: it holds."""
    note: str = ""
    """What a reader should know even where it holds."""


def judge_journal(texts: Iterable[str], rebuild: Rebuild) -> list[Verdict]:
    """Judge the text of a journal, line by line with its header.

    Args:
        texts: the lines, each with its line break.
        rebuild: builds a fresh paradigm; see `raysync.core.replay.Rebuild`.

    Raises:
        ConfigError: the text is no journal, or its paradigm cannot be built.
    """
    texts = list(texts)
    lines = list(read(texts)[1])
    replayed = replay(texts, rebuild)
    return [
        Verdict(REPLAY, replayed.difference or ""),
        *(judge_lines(lines, replayed) if replayed.difference is None else ()),
    ]


def judge_lines(lines: Sequence[Line], replayed: Replayed) -> list[Verdict]:
    """Judge the lines of a journal whose replay makes the same decisions."""
    entries = [line for line in lines if isinstance(line, Entry)]
    return [
        Verdict(CONSERVATION, _unbalanced(entries, buffered_in(replayed.machine))),
        Verdict(VERSIONS, _gaps(entries, replayed.machine)),
        Verdict(ONCE, _pushed_again(entries)),
    ]


def buffered_in(machine: Machine | StageMachines) -> set[Push]:
    """Return the pushes that are neither applied nor dropped at the end."""
    machines = machine.machines.values() if isinstance(machine, StageMachines) else [machine]
    return {push for each in machines for push in each.roster.buffered}


def pushes_of(entries: Iterable[Entry]) -> list[Push]:
    """Return the pushes that arrived, in their order."""
    return [
        (entry.event.worker, entry.event.clock)
        for entry in entries
        if isinstance(entry.event, Pushed)
    ]


def updates_in(lines: Iterable[Line]) -> list[tuple[Push, ...]]:
    """Return the pushes of each update."""
    return [
        decision.pushes
        for line in lines
        if isinstance(line, Entry)
        for decision in line.decisions
        if isinstance(decision, Apply)
    ]


def _unbalanced(entries: Sequence[Entry], buffered: set[Push]) -> str:
    """Say which push was used twice, or was never there, or is lost; empty: none."""
    received, used = Counter(pushes_of(entries)), Counter(buffered)
    for decision in (decision for entry in entries for decision in entry.decisions):
        if isinstance(decision, Apply):
            used.update(decision.pushes)
        elif isinstance(decision, Drop):
            used[decision.push] += 1
    if lost := received - used:
        return f"{_some(lost)}: neither applied nor dropped nor buffered"
    if many := used - received:
        return f"{_some(many)}: applied or dropped more often than received"
    return ""


def _gaps(entries: Sequence[Entry], machine: Machine | StageMachines) -> str:
    """Say where a version does not follow the one before; empty: nowhere. Each stage of a network
    counts its own.
    """
    if isinstance(machine, StageMachines):
        return ""  # the replay has compared them
    expected = 1
    for entry in entries:
        for decision in entry.decisions:
            if not isinstance(decision, Apply):
                continue
            if decision.version != expected:
                return f"at {entry.event.at:g} s comes version {decision.version}, not {expected}"
            expected += 1
    return ""


def _pushed_again(entries: Sequence[Entry]) -> str:
    again = {push: count for push, count in Counter(pushes_of(entries)).items() if count > 1}
    return f"{_some(again)}: pushed more than once" if again else ""


def _some(pushes: Iterable[Push]) -> str:
    first, *others = [f"{worker} clock {clock}" for worker, clock in pushes]
    return f"{first} and {len(others)} more" if others else first


def failed(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts of the oracles that found something."""
    return [verdict for verdict in verdicts if verdict.failure]
