"""The journal of a run as text: JSON lines, the first a header, then one line an event with its decisions.

    {"journal": 1, "paradigm": {"class": ..., "parameters": ...}, "workload_samples": ..., ...}
    {"event": "Pushed", "at": 1.5, "worker": "fast-0#1", ..., "decisions": [{"do": "Apply", ...}, ...], "report": {...}}
    {"evaluation": {...}}
    {"remark": {"at": 7.5, "text": ...}}
    {"ended": {"status": "finished", "at": 20.1}}

`report` is what came with the event and decides nothing (the loss of a push, the reason of a Left); evaluations, remarks
and the closing line are for readers. Replay needs the header and the events alone. No file is touched: text in, text out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from traceback import extract_tb
from typing import Any, Protocol, assert_never, get_args

from raysync.core.decisions import Decision
from raysync.core.events import Event
from raysync.core.machine import describe
from raysync.core.paradigm import Rule
from raysync.errors import ConfigError, IllegalDecision, RunFailed

JOURNAL_SCHEMA = 1

_CLASSES = {cls.__name__: cls for cls in (*get_args(Event), *get_args(Decision))}
_FIELDS = {cls: tuple(field.name for field in fields(cls)) for cls in _CLASSES.values()}


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, what the machine decided, and what else was reported with the event."""

    event: Event
    decisions: tuple[Decision, ...]
    report: dict[str, Any] = field(default_factory=dict)


class Handler(Protocol):
    """What answers events: a machine, or one for each module."""

    def handle(self, event: Event) -> list[Decision]:
        """As `Machine.handle`."""


def answered(machine: Handler, event: Event, report: dict[str, Any]) -> Entry:
    """Let a machine answer an event.

    Raises:
        RunFailed: the paradigm decided what cannot be carried out; it is told at which event.
        Exception: whatever else is raised there says at which event, and in which line of the
            paradigm, as far as it was called.
    """
    try:
        return Entry(event, tuple(machine.handle(event)), report)
    except IllegalDecision as error:
        raise RunFailed(f"{error} It answered {event}") from error
    except Exception as error:
        frames = extract_tb(error.__traceback__)
        core = Path(__file__).parent
        last = next((frame for frame in reversed(frames) if Path(frame.filename).parent != core), frames[-1])
        error.add_note(f"at {event}, in {last.filename}:{last.lineno}")
        raise


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of the published model."""

    mark: float
    """The progress at which it was due."""
    progress: float
    """The progress at which it was made."""
    version: int
    at: float
    """Seconds since the run began: when the weights were published."""
    accuracy: float
    """Fraction of 1."""
    loss: float
    """Mean cross-entropy per label (of a sample, or of a token), in nats."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last line of a run that was closed."""

    status: str
    """finished, diverged, stopped or failed."""
    at: float
    """Seconds since the run began: the last publication; of a run that the driver closed (stopped), the last event."""
    error: str = ""
    troubles_without_effect: tuple[str, ...] = ()
    """Those of the experiment that nobody met, as its file has them."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that a person should know and that is no event."""

    at: float
    """Seconds since the run began."""
    text: str


Line = Entry | Evaluation | Remark | Ended


def header(paradigm: Rule, workload_samples: int | None, **more: Any) -> str:
    """The first line: all that a replay needs to start from, and `more` for readers."""
    return json.dumps({"journal": JOURNAL_SCHEMA, "paradigm": describe(paradigm),
                       "workload_samples": workload_samples, **more})


def encode(line: Line) -> str:
    """One line of text, without its line break. Text of NaN and infinity is Python's (`NaN`, `Infinity`)."""
    match line:
        case Entry(event=event, decisions=decisions, report=report):
            data = {"event": type(event).__name__, **_values(event),
                    "decisions": [{"do": type(decision).__name__, **_values(decision)} for decision in decisions]}
            if report:
                data["report"] = report
        case Evaluation():
            data = {"evaluation": _plain(line)}
        case Remark():
            data = {"remark": _plain(line)}
        case Ended():
            data = {"ended": _plain(line)}
        case _:
            assert_never(line)
    return json.dumps(data)


def decode(text: str) -> Line:
    """The line that `encode` wrote.

    Raises:
        ConfigError: it is not a line of a journal of this schema.
    """
    try:
        data = json.loads(text)
        if "evaluation" in data:
            return Evaluation(**data["evaluation"])
        if "remark" in data:
            return Remark(**data["remark"])
        if "ended" in data:
            ended = data["ended"]
            return Ended(**ended | {"troubles_without_effect": tuple(ended.get("troubles_without_effect", ()))})
        report = data.pop("report", {})
        decisions = tuple(_build(decision.pop("do"), decision) for decision in data.pop("decisions"))
        return Entry(_build(data.pop("event"), data), decisions, report)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"not a line of a journal: {text[:80]!r} ({error})") from error


def read(lines: Iterable[str]) -> tuple[dict[str, Any], Iterator[Line]]:
    """Header and lines of a journal. A last line that was cut off, as a killed run leaves it, is passed over.

    Raises:
        ConfigError: no journal, one of another schema, a damaged header, or (while iterating) a damaged line.
    """
    rest = iter(lines)
    try:
        head = json.loads(next(rest, "null"))
    except ValueError:
        head = None
    if not isinstance(head, dict) or "journal" not in head:
        raise ConfigError("this is not a raysync journal: its first line is no header.")
    if head["journal"] != JOURNAL_SCHEMA:
        raise ConfigError(f"the journal has schema {head['journal']}; this raysync reads schema {JOURNAL_SCHEMA}.")
    if not {"paradigm", "workload_samples"} <= head.keys():
        raise ConfigError("the header of the journal is damaged.")
    return head, (decode(line) for line in rest if line.endswith("\n"))


def _values(thing: Any) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in _FIELDS[type(thing)]}


def _plain(thing: Evaluation | Remark | Ended) -> dict[str, Any]:
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


def _build(name: str, values: dict[str, Any]) -> Any:
    if "pushes" in values:
        values["pushes"] = tuple((worker, clock) for worker, clock in values["pushes"])
    if "push" in values:
        worker, clock = values["push"]
        values["push"] = (worker, clock)
    return _CLASSES[name](**values)
