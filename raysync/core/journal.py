"""The journal of a run as text: JSON lines, the first of them a header, then one line for each
event with its decisions.

    {"journal": 1, "paradigm": {"class": ..., "parameters": ...}, "workload_samples": ..., ...}
    {"type": "Entry", "event": {"type": "Pushed", "at": 1.5, "worker": "fast-0#1", ...},
     "decisions": [{"type": "Apply", ...}, ...], "report": {...}}
    {"type": "Evaluation", "mark": 0.5, "progress": ..., "version": ..., "at": ..., "metrics": ...}
    {"type": "Remark", "at": 7.5, "text": ...}
    {"type": "Checkpointed", "at": 9.0, "number": 1}
    {"type": "Resumed", "at": 9.0, "number": 1, "away_s": 31.0, "lost_s": 4.2, "lost_pushes": 17}
    {"type": "Ended", "status": "finished", "at": 20.1}

A field that has its default may be left out. `report` came with the event and does not influence
decisions; evaluations, remarks and the closing line are for readers. A replay needs only the
header, the events, and where the run was resumed. No file is opened here: text in, text out.

A journal may be damaged, or come from a stranger, so its types are checked once, here, when it is
decoded; readers need not check again. Whether its history is possible is another question, which
the machine and the rosters answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

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
    decode as decoded,
    encode as encoded,
    is_native,
    is_whole,
)
from raysync.errors import ConfigError

JOURNAL_SCHEMA = 1


class Report(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """What else was reported with an event."""

    loss: float | None = None
    """Of a push: the mean loss of its batch at the weights it was computed on."""
    not_finite: Finding | None = None
    delay_ticks: Whole | None = None
    """Of the push of a pipeline's stage: ticks between the batch's forward and backward pass."""
    forward_version: Whole | None = None
    """Of the same: the version that the forward pass read."""
    held_back_s: Seconds | None = None
    """Seconds for which the release was held back until there were enough workers."""
    server_s: Seconds | None = None
    """Seconds from the release until the server had made the weights."""
    why: str = ""
    """Why a worker has left."""
    done: bool = False
    """Whether it has left because nothing was left to do."""
    restart_in_s: Seconds | None = None
    """Seconds until its slot gets a new worker."""
    away_s: Seconds | None = None
    """Of a worker that joined: seconds since its slot lost the one before it."""


NO_REPORT = Report()


class Entry(TaggedStruct, frozen=True):
    """One event, the decisions of the machine, and what else was reported with the event."""

    event: Event
    decisions: tuple[Decision, ...]
    report: Report = NO_REPORT


class Evaluation(TaggedStruct, frozen=True):
    """One evaluation of the published model."""

    mark: float
    """The progress at which it was due."""
    progress: float
    """The progress of the evaluated model."""
    version: Whole
    at: Seconds
    """Seconds since the run began: when the weights were published."""
    metrics: Mapping[str, float]
    """Metric -> its value on the test set; `loss`, what training minimises, is one of them."""

    @property
    def loss(self) -> float:
        """The metric `loss`; of classification and language models the mean cross-entropy per
        label (of a sample, or of a token), in nats.
        """
        return self.metrics[LOSS]

    def value(self, metric: str) -> float | None:
        """Return a metric by its name, or a perplexity by the loss; None if there is none."""
        return value_of(self.metrics, metric)


class Ended(TaggedStruct, frozen=True):
    """The last line of a run that was closed."""

    status: str
    """One of finished, diverged, stopped and failed."""
    at: Seconds
    """Seconds since the run began: the time of the last publication; if the run was stopped, that
    of the last event."""
    error: str = ""
    faults_without_effect: tuple[str, ...] = ()
    """The faults of the experiment that never took effect, as its file has them."""


class Remark(TaggedStruct, frozen=True):
    """Information for a person that is no event."""

    at: Seconds
    """Seconds since the run began."""
    text: str


class Checkpointed(TaggedStruct, frozen=True):
    """The cut of a checkpoint: it has all that the lines before this one tell, and nothing else."""

    at: Seconds
    """Seconds since the run began."""
    number: Whole
    """The checkpoint's number in its run, from 1."""


class Resumed(TaggedStruct, frozen=True):
    """The run goes on here from a checkpoint; the line stands directly behind the cut.

    What the journal told between the cut and the loss was lost with it, and is not in the journal
    any more. All iterations that were under way at the cut are computed again, on the weights that
    were published then.
    """

    at: Seconds
    """Seconds since the run began: the time of the cut. The run's clock stood still since then."""
    number: Whole
    """The checkpoint's number."""
    away_s: Seconds = 0.0
    """The seconds from the last sign of life before the loss to the resumption."""
    lost_s: Seconds = 0.0
    """The seconds of training after the cut that were lost."""
    lost_pushes: Whole = 0
    """The pushes after the cut that were lost."""
    exact: bool = False
    """Whether the iterations under way went on instead, as only those in virtual time can."""


Line = Entry | Evaluation | Remark | Checkpointed | Resumed | Ended


class Header(msgspec.Struct, frozen=True):
    """The first line: what a replay starts from, and what readers want to know."""

    journal: int
    """The schema."""
    paradigm: Description
    workload_samples: Whole | None
    about: Mapping[str, Any] = {}


def header(
    paradigm: AnyParadigm, workload_samples: int | None, about: Mapping[str, Any] | None = None
) -> str:
    """Encode the first line; `about` is for readers."""
    head = Header(JOURNAL_SCHEMA, describe(paradigm), workload_samples, about or {})
    return encoded(head).decode()


def encode(line: Line) -> str:
    """Encode a line as text, without its line break."""
    return encoded(line).decode()


def decode(text: str) -> Line:
    """Decode a line that `encode` wrote.

    Raises:
        ConfigError: it is not a line of a journal of this schema.
    """
    try:
        line: Line = decoded(text, Line)  # type: ignore[arg-type]
        if reason := _refusal(line):
            raise ValueError(reason)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not a line of a journal: {text[:80]!r} ({error})") from error
    return line


def _refusal(line: Line) -> str:
    """Say what is wrong with a line whose types are right; "" if nothing is."""
    if isinstance(line, Entry):
        for decision in line.decisions:
            if type(decision) is Note and not is_native(decision.values):
                return "the values of a note are nested too deep, or too large"
    elif isinstance(line, Evaluation):
        return refusal(line.metrics)
    return ""


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


def read(lines: Iterable[str]) -> tuple[Header, Iterator[Line]]:
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


def read_header(text: str) -> Header:
    """Read the first line.

    Raises:
        ConfigError: the text is no journal or has another schema, or its header is damaged.
    """
    try:
        schema = decoded(text, dict[str, Any])["journal"]
    except (ValueError, LookupError, RecursionError):
        raise ConfigError("this is not a raysync journal: its first line is no header.") from None
    if schema != JOURNAL_SCHEMA or not is_whole(schema):
        newer = "a newer" if is_whole(schema) and schema > JOURNAL_SCHEMA else "another"
        raise ConfigError(
            f"it was written by {newer} raysync: the journal has schema {schema!r:.20}; this"
            f" raysync reads schema {JOURNAL_SCHEMA}."
        )
    try:
        head = decoded(text, Header)
        if not is_native(head.about) or not is_native(head.paradigm.parameters):
            raise ValueError("too deep lists, or too large numbers")
        if head.workload_samples is not None and head.workload_samples < 1:
            raise ValueError(f"a workload of {head.workload_samples} samples")
    except ValueError as error:
        raise ConfigError(f"the header of the journal is damaged ({error}).") from error
    return head
