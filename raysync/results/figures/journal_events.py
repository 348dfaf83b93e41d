"""Read a journal's events beside pushes: switches, notes, joins, leaves, and reasons of holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from raysync.core.decisions import Hold, Note, Restore, Suspend, Switch
from raysync.core.events import Joined, Left
from raysync.core.journal import Entry, Remark, Resumed, read
from raysync.core.structs import to_native
from raysync.record.journal_file import JournalFile
from raysync.record.reader import RunRecord, legible, measures_of

# the words of lines that are decoded throughout a journal
DECODED = [
    f'"{kind.__name__}"' for kind in (Note, Suspend, Restore, Switch, Joined, Left, Remark, Resumed)
]

OPENING = 4_000  # the first lines, which are all decoded: reasons of holds are known only for these


@dataclass(frozen=True)
class Happening:
    at: float  # seconds since the first release
    kind: str  # a note's, or suspended, restored, switch, left, joined, remark or resumed
    worker: str
    values: dict[str, Any] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """Return a value; None: missing, or no finite number."""
        value: Any = self.values.get(name)
        return value if type(value) in (int, float) and isfinite(value) else None

    @property
    def text(self) -> str:
        more = ", ".join(f"{name} {_number_text(value)}" for name, value in self.values.items())
        return ", ".join(part for part in (f"{self.kind} {self.worker}".strip(), more) if part)


@dataclass(frozen=True)
class RunEvents:
    """The events of one run."""

    happenings: tuple[Happening, ...] = ()
    # (worker, seconds since the first release, to microseconds) -> why it was held
    holds: dict[tuple[str, float], str] = field(default_factory=dict)

    def of(self, *kinds: str) -> list[Happening]:
        return [happening for happening in self.happenings if happening.kind in kinds]


def run_events_of(record: RunRecord, start: float) -> RunEvents:
    """Read a journal, and skip most lines of a long one without decoding.

    Args:
        record: the run.
        start: its first release, in seconds since the run began.
    """
    holds: dict[tuple[str, float], str] = {}
    happenings: list[Happening] = []
    with legible(record.path), JournalFile(record.path / "journal.jsonl") as file:
        for line in read(_decoded_lines(file))[1]:
            match line:
                case Entry(event=event):
                    at = event.at - start
                    happenings += _happenings_of(line, at)
                    holds |= {
                        (decision.worker, round(at, 6)): decision.why
                        for decision in line.decisions
                        if isinstance(decision, Hold)
                    }
                case Remark(at=at, text=text):
                    happenings.append(Happening(at - start, "remark", "", {"": text}))
                case Resumed(at=at, number=number, lost_pushes=lost):
                    values = {"from checkpoint": number, "lost pushes": lost}
                    happenings.append(Happening(at - start, "resumed", "", values))
    return RunEvents(tuple(happenings), holds)


def workload_of(record: RunRecord) -> int:
    """Return the samples of the whole work from the journal's header."""
    header = record.header
    with legible(record.path):
        return measures_of(header).workload_samples


def _decoded_lines(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number <= OPENING or any(word in line for word in DECODED):
            yield line


def _happenings_of(entry: Entry, at: float) -> Iterator[Happening]:
    match entry.event:
        case Joined(worker=worker):
            yield Happening(at, "joined", worker, to_native(entry.report))
        case Left(worker=worker):
            yield Happening(at, "left", worker, to_native(entry.report))
    for decision in entry.decisions:
        match decision:
            case Note(kind=kind, worker=worker, values=values):
                yield Happening(at, kind, worker, dict(values))
            case Suspend(worker=worker):
                yield Happening(at, "suspended", worker)
            case Restore(worker=worker):
                yield Happening(at, "restored", worker)
            case Switch(to=to, why=why):
                yield Happening(at, "switch", "", {"to": to, "because": why})


def _number_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
