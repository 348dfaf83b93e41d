"""The journal of a run as text: JSON lines, first a header, then a line for each event."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from raysync.core.decisions import Decision, Note
from raysync.core.events import Event
from raysync.core.finding import Finding
from raysync.core.machine import Description, describe
from raysync.core.metrics import LOSS, refusal, value_of
from raysync.core.paradigm import AnyParadigm
from raysync.core.structs import (
    Seconds,
    TaggedStruct,
    Whole,
    decode as decode_json,
    encode as encode_json,
    is_native,
    is_whole,
)
from raysync.errors import ConfigError

#     {"journal": 1, "paradigm": {"class": ..., "parameters": ...}, "workload_samples": ..., ...}
#     {"type": "Entry", "event": {"type": "Pushed", "at": 1.5, "worker": "fast-0#1", ...},
#      "decisions": [{"type": "Apply", ...}, ...], "report": {...}}
#     {"type": "Evaluation", "mark": 0.5, "progress": ..., "version": ..., "metrics": ..., ...}
#     {"type": "Remark", "at": 7.5, "text": ...}
#     {"type": "Checkpointed", "at": 9.0, "number": 1}
#     {"type": "Resumed", "at": 9.0, "number": 1, "away_s": 31.0, "lost_s": 4.2, "lost_pushes": 17}
#     {"type": "Ended", "status": "finished", "at": 20.1}
#
# A replay needs only the header, the events and the resumptions; the rest is for readers. A journal
# may be damaged, or come from a stranger: `decode` checks its types once. Whether its history is
# possible, the machine and the rosters decide.
JOURNAL_SCHEMA = 1

ActorKind = Literal["worker", "server", "evaluator"]


class Report(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """The fields of an event that do not influence decisions."""

    loss: float | None = None  # mean loss of a push's batch at the weights it was computed on
    not_finite: Finding | None = None
    # ticks between forward and backward pass of the batch of a stage's push
    delay_ticks: Whole | None = None
    # version that the forward pass of a stage's push read
    forward_version: Whole | None = None
    held_back_s: Seconds | None = None  # time that the release waited for enough workers
    server_s: Seconds | None = None  # time from the release until the server had made the weights
    why: str = ""  # why a worker left
    done: bool = False  # the worker left because no work remained
    restart_in_s: Seconds | None = None  # time until the slot of the worker that left has a new one
    # a worker was lost as the experiment's faults demand, or after an announcement; None: it was
    # not lost, or the journal is of an earlier version
    planned: bool | None = None
    # time since the previous life of the slot ended, of a worker that joined
    away_s: Seconds | None = None

    @property
    def is_loss(self) -> bool:
        """Whether a worker was lost that was to stay."""
        return self.restart_in_s is not None if self.planned is None else not self.planned


NO_REPORT = Report()


class Entry(TaggedStruct, frozen=True):
    """One event with its decisions and its report."""

    event: Event
    decisions: tuple[Decision, ...]
    report: Report = NO_REPORT


class Evaluation(TaggedStruct, frozen=True):
    """One evaluation of the published model."""

    mark: float  # the progress at which it was due
    progress: float  # the progress of the evaluated model
    version: Whole
    at: Seconds  # when the weights were published, in seconds since the run began
    # the metrics on the test set; `loss`, which training minimises, is one of them
    metrics: Mapping[str, float]

    @property
    def loss(self) -> float:
        """The metric `loss`; in classification and language models mean cross-entropy in nats."""
        return self.metrics[LOSS]

    def value(self, metric: str) -> float | None:
        """Return a metric, or a perplexity computed from the loss; None if there is none."""
        return value_of(self.metrics, metric)


class Ended(TaggedStruct, frozen=True):
    """The last line of a run that was closed."""

    status: str  # finished, diverged, stopped or failed
    at: Seconds  # the time of the last publication; if the run was stopped, of the last event
    error: str = ""
    # the faults that never took effect, as the experiment's file has them
    faults_without_effect: tuple[str, ...] = ()
    # the setting, or `signal`, that ended the run before its work was done: `stop.patience`, ...
    by: str = ""
    reached: bool = False  # and it ended since it had reached what it was to reach


class Remark(TaggedStruct, frozen=True):
    """Information for a person."""

    at: Seconds
    text: str
    lost: ActorKind | None = None  # a process was lost, unplanned, for which there is no `Left`
    away_s: Seconds = 0.0  # time from the loss of a server until it had recovered


class Checkpointed(TaggedStruct, frozen=True):
    """The moment of a checkpoint, which holds exactly what the lines before this one tell."""

    at: Seconds
    number: Whole  # from 1


class Resumed(TaggedStruct, frozen=True):
    """The run resumed here from a checkpoint; the line directly follows its `Checkpointed`.

    The lines between checkpoint and loss are gone. Iterations in flight at the checkpoint are
    computed again, on the weights that were published then.
    """

    at: Seconds  # the time of the checkpoint: the run's clock stood still since then
    number: Whole  # the number of the checkpoint
    away_s: Seconds = 0.0  # time from the last sign of life before the loss to the resumption
    lost_s: Seconds = 0.0  # time of training after the checkpoint
    lost_pushes: Whole = 0
    exact: bool = False  # in-flight iterations continued instead, which only virtual time can do
    lost: tuple[ActorKind, ...] = ()  # unplanned, after the checkpoint


Line = Entry | Evaluation | Remark | Checkpointed | Resumed | Ended


class Header(msgspec.Struct, frozen=True):
    """The first line: the start of a replay, and information for readers."""

    journal: int  # the schema
    paradigm: Description
    workload_samples: Whole | None
    about: Mapping[str, Any] = {}
    seed: Whole = 0  # of the rule's own draws; journals of earlier versions have none


def header(
    paradigm: AnyParadigm,
    workload_samples: int | None,
    about: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> str:
    """Encode the first line; `about` is for readers."""
    head = Header(
        journal=JOURNAL_SCHEMA,
        paradigm=describe(paradigm),
        workload_samples=workload_samples,
        about=about or {},
        seed=seed,
    )
    return encode_json(head).decode()


def encode(line: Line) -> str:
    """Encode a line as text, without its line break."""
    return encode_json(line).decode()


def decode(text: str) -> Line:
    """Decode a line that `encode` wrote; a ConfigError shows a damaged one."""
    try:
        line: Line = decode_json(text, Line)  # type: ignore[arg-type]
        if reason := _why_invalid(line):
            raise ValueError(reason)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not a line of a journal: {text[:80]!r} ({error})") from error
    return line


def _why_invalid(line: Line) -> str:
    if isinstance(line, Entry):
        for decision in line.decisions:
            if type(decision) is Note and not is_native(decision.values):
                return "the values of a note are nested too deep, or too large"
    elif isinstance(line, Evaluation):
        return refusal(line.metrics)
    return ""


class Decoder:
    """Decodes the lines that follow the header, in order."""

    def __init__(self) -> None:
        self.number = 1  # the number of the latest line; the header is line 1
        self.ended = False  # the latest line was the closing line

    def decode(self, text: str) -> Line:
        """Decode the next line; a ConfigError counts damaged lines, and lines behind the closing
        one.
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


def read(lines: Iterable[str]) -> tuple[Header, Iterator[Line]]:
    """Return header and lines, without a last line that a killed run left incomplete.

    A ConfigError refuses the header at once, a damaged line when it is reached.
    """
    rest = iter(lines)
    head = read_header(next(rest, "null"))
    decoder = Decoder()
    return head, (decoder.decode(line) for line in rest if line.endswith("\n") or decoder.ended)


def read_header(text: str) -> Header:
    """Decode the first line; a ConfigError says what is wrong with it."""
    try:
        schema = decode_json(text, dict[str, Any])["journal"]
    except (ValueError, LookupError, RecursionError):
        raise ConfigError("this is not a raysync journal: its first line is no header.") from None
    if schema != JOURNAL_SCHEMA or not is_whole(schema):
        which = "another"
        if is_whole(schema):
            which = "a newer" if schema > JOURNAL_SCHEMA else "an older"
        raise ConfigError(
            f"it was written by {which} raysync: the journal has schema {schema!r:.20}; this"
            f" raysync reads schema {JOURNAL_SCHEMA}."
        )
    try:
        head = decode_json(text, Header)
        if not is_native(head.about) or not is_native(head.paradigm.parameters):
            raise ValueError("too deep lists, or too large numbers")
        if head.workload_samples is not None and head.workload_samples < 1:
            raise ValueError(f"a workload of {head.workload_samples} samples")
    except ValueError as error:
        raise ConfigError(f"the header of the journal is damaged ({error}).") from error
    return head
