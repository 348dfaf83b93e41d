"""What a journal tells beside the pushes: switches, notes, who came and went, and why somebody was
held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from raysync.core.decisions import Hold, Note, Restore, Suspend, Switch
from raysync.core.events import Joined, Left
from raysync.core.journal import Entry, Remark, read
from raysync.record.reader import RunRecord, legible, measures_of

TELLING = ('"Note"', '"Suspend"', '"Restore"', '"Switch"', '"Joined"', '"Left"', '"remark"')
"""Words of the lines that are read to the end of a journal."""

OPENING = 4_000
"""Lines at a journal's beginning that are all read: why workers were held is shown there alone."""


@dataclass(frozen=True)
class Happening:
    """Something at a moment."""

    at: float
    """Seconds since the first release."""
    kind: str
    """A note has its own; otherwise suspended, restored, switch, left, joined or remark."""
    worker: str
    values: dict[str, Any] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """One of the values; None where there is none, or it is no finite number."""
        value: Any = self.values.get(name)
        return value if type(value) in (int, float) and isfinite(value) else None

    @property
    def text(self) -> str:
        """In a line."""
        more = ", ".join(f"{name} {_shown(value)}" for name, value in self.values.items())
        return ", ".join(part for part in (f"{self.kind} {self.worker}".strip(), more) if part)


@dataclass(frozen=True)
class Story:
    """One run's."""

    happenings: tuple[Happening, ...] = ()
    holds: dict[tuple[str, float], str] = field(default_factory=dict)
    """(worker, seconds since the first release, rounded to microseconds) -> why it was held."""

    def of(self, *kinds: str) -> list[Happening]:
        """Those of some kinds."""
        return [one for one in self.happenings if one.kind in kinds]


def story_of(record: RunRecord, start: float) -> Story:
    """Read a journal; most lines of a long one are passed over undecoded.

    Args:
        record: of the run.
        start: its first release, in seconds since the run began.
    """
    holds: dict[tuple[str, float], str] = {}
    happenings: list[Happening] = []
    with legible(record.path), (record.path / "journal.jsonl").open(encoding="utf-8") as file:
        for line in read(_telling(file))[1]:
            match line:
                case Entry(event=event):
                    at = event.at - start
                    happenings += _entry(line, at)
                    holds |= {
                        (one.worker, round(at, 6)): one.why
                        for one in line.decisions
                        if isinstance(one, Hold)
                    }
                case Remark(at=at, text=text):
                    happenings.append(Happening(at - start, "remark", "", {"": text}))
    return Story(tuple(happenings), holds)


def workload_of(record: RunRecord) -> int:
    """Samples of the whole work, as the journal's header has them: a progress of 1."""
    with legible(record.path), (record.path / "journal.jsonl").open(encoding="utf-8") as file:
        return measures_of(read(file)[0]).workload_samples


def _telling(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number <= OPENING or any(word in line for word in TELLING):
            yield line


def _entry(entry: Entry, at: float) -> Iterator[Happening]:
    match entry.event:
        case Joined(worker=worker):
            yield Happening(at, "joined", worker)
        case Left(worker=worker):
            yield Happening(
                at, "left", worker, {key: value for key, value in entry.report.items() if value}
            )
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


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
