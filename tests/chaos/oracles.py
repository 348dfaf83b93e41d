"""What must hold of the journal of any run, however often it was struck and resumed.

The counts are made of the journal's own lines, and not taken from the roster of a replay, whose
bookkeeping would always add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from raysync.core.decisions import Apply, Drop, Push
from raysync.core.events import Pushed
from raysync.core.journal import Entry, read
from raysync.core.machine import Machine
from raysync.core.replay import Rebuild, replay
from raysync.core.stages import StageMachines

REPLAY = "replay decides the same"
CONSERVATION = "received = applied + dropped + buffered"
VERSIONS = "versions without gaps"
ONCE = "each push once"
Verdicts = dict[str, str]
"""Oracle -> where it does not hold; empty: it holds."""


def judge_journal(texts: Iterable[str], rebuild: Rebuild) -> Verdicts:
    """Judge the text of a journal, line by line with its header.

    Raises:
        ConfigError: the text is no journal, or its paradigm cannot be built.
    """
    texts = list(texts)
    entries = [line for line in read(texts)[1] if isinstance(line, Entry)]
    replayed = replay(texts, rebuild)
    if replayed.difference is not None:
        return {REPLAY: replayed.difference}
    return {REPLAY: "", **judge_entries(entries, replayed.machine)}


def judge_entries(entries: Sequence[Entry], machine: Machine | StageMachines) -> Verdicts:
    """Judge a journal whose replay, which has left that machine, makes the same decisions."""
    is_staged = isinstance(machine, StageMachines)
    machines = machine.machines.values() if isinstance(machine, StageMachines) else [machine]
    received = Counter(
        (entry.event.worker, entry.event.clock)
        for entry in entries
        if isinstance(entry.event, Pushed)
    )
    decisions = [decision for entry in entries for decision in entry.decisions]
    updates = [decision for decision in decisions if isinstance(decision, Apply)]
    used = Counter(push for each in machines for push in each.roster.buffered)
    used.update(push for update in updates for push in update.pushes)
    used.update(decision.push for decision in decisions if isinstance(decision, Drop))
    versions = [update.version for update in updates]
    gap = next((at for at, version in enumerate(versions, 1) if version != at), None)
    again = [push for push, count in received.items() if count > 1]
    return {
        CONSERVATION: _list("lost", received - used) or _list("used too often", used - received),
        # each stage counts its own, which the replay has compared
        VERSIONS: "" if is_staged or gap is None else f"version {versions[gap - 1]}, not {gap}",
        ONCE: _list("pushed again", again),
    }


def _list(what: str, pushes: Iterable[Push]) -> str:
    texts = [f"{worker} clock {clock}" for worker, clock in pushes]
    return f"{what}: {', '.join(texts)}" if texts else ""
