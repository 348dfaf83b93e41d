"""The journal of a run as text: JSON lines, the first of them a header, then one line for each
event with its decisions.

    {"journal": 2, "paradigm": {"class": ..., "parameters": ...}, "workload_samples": ..., ...}
    {"event": "Pushed", "at": 1.5, "worker": "fast-0#1", ...,
     "decisions": [{"do": "Apply", ...}, ...], "report": {...}}
    {"evaluation": {"mark": 0.5, "progress": ..., "version": ..., "at": ..., METRIC: ..., ...}}
    {"remark": {"at": 7.5, "text": ...}}
    {"checkpointed": {"at": 9.0, "number": 1}}
    {"resumed": {"at": 9.0, "number": 1, "away_s": 31.0, "lost_s": 4.2, "lost_pushes": 17}}
    {"ended": {"status": "finished", "at": 20.1}}

`report` came with the event and does not influence decisions (the loss of a push, the reason of a
Left); evaluations, remarks and the closing line are for readers. A replay needs only the header,
the events, and where the run was resumed. No file is opened here: text in, text out.

A journal may be damaged, or come from a stranger, so its types are checked once, here, when it is
decoded; readers need not check again. Whether its history is possible is another question, which
the machine and the rosters answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, assert_never, get_args

from raysync.core.decisions import DROP_REASONS, Decision
from raysync.core.events import Event
from raysync.core.fast_init import maker
from raysync.core.json_values import is_native, is_whole
from raysync.core.machine import describe
from raysync.core.metrics import LOSS, RESERVED, refusal, value_of
from raysync.core.paradigm import AnyParadigm
from raysync.errors import ConfigError

JOURNAL_SCHEMA = 2

_EVENTS = {cls.__name__: cls for cls in get_args(Event)}
_DECISIONS = {cls.__name__: cls for cls in get_args(Decision)}
_CLASSES = (*_EVENTS.values(), *_DECISIONS.values())


def _plain_by(cls: type, kind: str) -> Callable[[Any], dict[str, Any]]:
    """Return a function from an event or a decision to what its text says.

    It is compiled from the names of the fields: a loop over them takes three times as long, and
    each push has three such things. Fields that no comparison looks at are left out, and so are
    those whose default is None where they are None; they come last, so that the order of the text
    is that of the fields.
    """
    told = [each for each in fields(cls) if each.compare]
    always = [each.name for each in told if each.default is not None]
    perhaps = [each.name for each in told if each.default is None]
    assert [each.name for each in told] == always + perhaps, f"the order of {cls}"
    values = "".join(f", {name!r}: self.{name}" for name in always)
    source = f"def plain(self):\n data = {{{kind!r}: {cls.__name__!r}{values}}}"
    for name in perhaps:
        source += f"\n if self.{name} is not None: data[{name!r}] = self.{name}"
    scope: dict[str, Any] = {}
    exec(compile(f"{source}\n return data", f"<{cls.__name__} as text>", "exec"), scope)
    plain: Callable[[Any], dict[str, Any]] = scope["plain"]
    return plain


_PLAIN = {
    cls: _plain_by(cls, kind)
    for classes, kind in ((_EVENTS, "event"), (_DECISIONS, "do"))
    for cls in classes.values()
}
"""Class of an event or of a decision -> the function that says what its text says."""


@dataclass(slots=True)
class Entry:
    """One event, the decisions of the machine, and what else was reported with the event."""

    event: Event
    decisions: tuple[Decision, ...]
    report: Mapping[str, Any] = field(default_factory=dict)


entry_of = maker(Entry)
"""Makes an `Entry` from all its fields, in their order."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation of the published model."""

    mark: float
    """The progress at which it was due."""
    progress: float
    """The progress of the evaluated model."""
    version: int
    at: float
    """Seconds since the run began: when the weights were published."""
    metrics: Mapping[str, float]
    """Metric -> its value on the test set; `loss`, what training minimises, is always among them.
    In the text they stand beside the other values."""

    @property
    def loss(self) -> float:
        """The metric `loss`; of classification and language models the mean cross-entropy per
        label (of a sample, or of a token), in nats.
        """
        return self.metrics[LOSS]

    def value(self, metric: str) -> float | None:
        """Return a metric by its name, or a perplexity by the loss; None if there is none."""
        return value_of(self.metrics, metric)


@dataclass(frozen=True, slots=True)
class Ended:
    """The last line of a run that was closed."""

    status: str
    """One of finished, diverged, stopped and failed."""
    at: float
    """Seconds since the run began: the time of the last publication; if the run was stopped, that
    of the last event."""
    error: str = ""
    faults_without_effect: tuple[str, ...] = ()
    """The faults of the experiment that never took effect, as its file has them."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Information for a person that is no event."""

    at: float
    """Seconds since the run began."""
    text: str


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The cut of a checkpoint: it has all that the lines before this one tell, and nothing else."""

    at: float
    """Seconds since the run began."""
    number: int
    """The checkpoint's number in its run, from 1."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run goes on here from a checkpoint; the line stands directly behind the cut.

    What the journal told between the cut and the loss was lost with it, and is not in the journal
    any more. All iterations that were under way at the cut are computed again, on the weights that
    were published then.
    """

    at: float
    """Seconds since the run began: the time of the cut. The run's clock stood still since then."""
    number: int
    """The checkpoint's number."""
    away_s: float = 0.0
    """The seconds from the last sign of life before the loss to the resumption."""
    lost_s: float = 0.0
    """The seconds of training after the cut that were lost."""
    lost_pushes: int = 0
    """The pushes after the cut that were lost."""
    exact: bool = False
    """Whether the iterations under way went on instead, as only those in virtual time can."""


Line = Entry | Evaluation | Remark | Checkpointed | Resumed | Ended


def header(paradigm: AnyParadigm, workload_samples: int | None, **more: Any) -> str:
    """Encode the first line: what a replay starts from, and `more` for readers."""
    return json.dumps(
        {
            "journal": JOURNAL_SCHEMA,
            "paradigm": describe(paradigm),
            "workload_samples": workload_samples,
            **more,
        }
    )


def encode(line: Line) -> str:
    """Encode a line as text without its line break; NaN and infinity are written as Python does
    (`NaN`, `Infinity`).
    """
    return json.dumps(plain(line))


def plain(line: Line) -> dict[str, Any]:
    """Return what the text of a line says, as JSON-native data."""
    if isinstance(line, Entry):  # a `match` that captures fields takes five times as long
        data = _PLAIN[type(line.event)](line.event)
        data["decisions"] = decisions = []
        for each in line.decisions:
            decisions.append(_PLAIN[type(each)](each))
        if line.report:
            data["report"] = line.report
        return data
    match line:
        case Evaluation(metrics=metrics):
            marked = {name: getattr(line, name) for name in RESERVED}
            data = {"evaluation": {**marked, **metrics}}
        case Remark():
            data = {"remark": _as_dict(line)}
        case Checkpointed():
            data = {"checkpointed": _as_dict(line)}
        case Resumed():
            data = {"resumed": _as_dict(line)}
        case Ended():
            data = {"ended": _as_dict(line)}
        case _:
            assert_never(line)
    return data


def decode(text: str) -> Line:
    """Decode a line that `encode` wrote.

    Raises:
        ConfigError: it is not a line of a journal of this schema.
    """
    try:
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("it is no JSON object")
        line: Line
        if "evaluation" in data:
            line = _evaluation(data["evaluation"])
        elif "remark" in data:
            line = _checked(Remark, data["remark"])
        elif "checkpointed" in data:
            line = _checked(Checkpointed, data["checkpointed"])
        elif "resumed" in data:
            line = _checked(Resumed, data["resumed"])
        elif "ended" in data:
            ended = data["ended"]
            line = _checked(
                Ended,
                ended | {"faults_without_effect": tuple(ended.get("faults_without_effect", ()))},
            )
        else:
            report = _report(data.pop("report", {}))
            decisions = tuple([_decision(values) for values in data.pop("decisions")])
            line = Entry(_checked(_EVENTS[data.pop("event")], data), decisions, report)
        return line
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"not a line of a journal: {text[:80]!r} ({error})") from error


class Decoder:
    """Decodes the lines of one journal after its header, in their order."""

    def __init__(self) -> None:
        self.number = 1
        """The number of the latest line; the header is the first."""
        self.ended = False
        """Whether the latest line was the closing line."""

    def take(self, text: str) -> Line:
        """Decode the next line.

        Raises:
            ConfigError: the line is damaged, or comes after the closing line.
        """
        self.number += 1
        if self.ended:
            raise ConfigError(f"line {self.number} comes after the closing line: {text[:80]!r}")
        try:
            line = decode(text)
        except ConfigError as error:
            raise ConfigError(f"line {self.number} is {error}") from error
        self.ended = isinstance(line, Ended)
        return line


def read(lines: Iterable[str]) -> tuple[dict[str, Any], Iterator[Line]]:
    """Return the header and the lines of a journal. A last line that was cut off, as a killed run
    leaves it, is skipped.

    Raises:
        ConfigError: the text is no journal or has another schema, its header is damaged, or (while
            iterating) a line is damaged.
    """
    rest = iter(lines)
    head = read_header(next(rest, "null"))
    decoder = Decoder()
    return head, (decoder.take(line) for line in rest if line.endswith("\n") or decoder.ended)


def read_header(text: str) -> dict[str, Any]:
    """Read the first line: `paradigm` (with `class` and `parameters`), `workload_samples`, and
    optionally `about`.

    Raises:
        ConfigError: the text is no journal or has another schema, or its header is damaged.
    """
    try:
        head = json.loads(text)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or "journal" not in head:
        raise ConfigError("this is not a raysync journal: its first line is no header.")
    if head["journal"] != JOURNAL_SCHEMA:
        newer = (
            "a newer"
            if is_whole(head["journal"]) and head["journal"] > JOURNAL_SCHEMA
            else "another"
        )
        raise ConfigError(
            f"it was written by {newer} raysync: the journal has schema"
            f" {head['journal']!r:.20}; this raysync reads schema {JOURNAL_SCHEMA}."
        )
    described, samples = head.get("paradigm"), head.get("workload_samples", 0)
    whole = (
        isinstance(described, dict)
        and _is_text(described.get("class"))
        and is_mapping(described.get("parameters"))
    )
    whole = whole and is_mapping(head.get("about", {}))
    if not whole or not (samples is None or (is_whole(samples) and samples > 0)):
        raise ConfigError("the header of the journal is damaged.")
    return head


LONGEST_S = 1e12
"""An upper bound on times, in seconds: 30,000 years."""


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_flag(value: object) -> bool:
    return type(value) is bool


def _is_number(value: object) -> bool:
    return type(value) is float or is_whole(value)


def _is_seconds(value: Any) -> bool:
    return type(value) in (float, int) and 0 <= value <= LONGEST_S  # NaN is not


def _is_push(value: Any) -> bool:
    worker, clock = value
    return type(worker) is str and is_whole(clock)


def is_mapping(value: object) -> bool:
    """Say whether the value is a mapping of JSON-native data, not nested too deep, whose whole
    numbers fit into 64 bits.
    """
    return type(value) is dict and is_native(value)


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


_FITS: dict[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "bool": _is_flag,
    "int": is_whole,
    "int | None": _or_none(is_whole),
    "float": _is_number,
    "float | None": _or_none(_is_number),
    "DropReason": lambda value: type(value) is str and value in DROP_REASONS,
    "Push": _is_push,
    "tuple[Push, ...]": lambda pushes: all(map(_is_push, pushes)),
    "tuple[str, ...]": lambda texts: all(map(_is_text, texts)),
    "Mapping[str, Any]": is_mapping,
    "Mapping[str, float]": is_mapping,
}
"""Type of a field, as annotated in the dataclasses -> whether a value has that type."""

_SECONDS = {"at", "busy_s", "away_s", "lost_s"}
_CHECKS = {
    cls: {
        each.name: (
            _or_none(_is_seconds)
            if each.name == "computed_at"
            else _is_seconds
            if each.name in _SECONDS and each.type == "float"
            else _FITS[str(each.type)]
        )
        for each in fields(cls)
        if each.compare
    }
    for cls in (*_CLASSES, Evaluation, Remark, Checkpointed, Resumed, Ended)
}
assert tuple(_CHECKS[Evaluation]) == (*RESERVED, "metrics"), "the fields beside the metrics"

_REPORTED = {
    "loss": _or_none(_is_number),
    "forward_version": is_whole,
    "delay_ticks": _or_none(is_whole),
    "why": _is_text,
    "restart_in_s": _is_seconds,
    "away_s": _is_seconds,
    "held_back_s": _is_seconds,
    "server_s": _is_seconds,
}
"""Checks of the entries of a report that readers use; other entries are only displayed."""


def _checked(cls: Any, values: dict[str, Any]) -> Any:
    checks = _CHECKS[cls]
    for name, value in values.items():
        if not checks[name](value):
            raise ValueError(f"{name}: {value!r:.40}")
    return cls(**values)


def _evaluation(values: dict[str, Any]) -> Evaluation:
    metrics = {name: value for name, value in values.items() if name not in RESERVED}
    if why := refusal(metrics):
        raise ValueError(why)
    for name, value in metrics.items():
        if not _is_number(value):
            raise ValueError(f"{name}: {value!r:.40}")
    marked = {name: values[name] for name in RESERVED}
    evaluation: Evaluation = _checked(Evaluation, marked | {"metrics": metrics})
    return evaluation


def _decision(values: dict[str, Any]) -> Any:
    cls = _DECISIONS[values.pop("do")]
    if "pushes" in values:
        values["pushes"] = tuple([(worker, clock) for worker, clock in values["pushes"]])
    if "push" in values:
        worker, clock = values["push"]
        values["push"] = (worker, clock)
    return _checked(cls, values)


def _report(report: dict[str, Any]) -> dict[str, Any]:
    for name, value in report.items():
        if not _REPORTED.get(name, is_native)(value):
            raise ValueError(f"report: {name}: {value!r:.40}")
    return report


def _as_dict(thing: Remark | Checkpointed | Resumed | Ended) -> dict[str, Any]:
    return {field.name: getattr(thing, field.name) for field in fields(thing)}
