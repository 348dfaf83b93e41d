"""The instructions of the machine to an engine: imperative, immutable.

A paradigm returns decisions with the fields of its choice; `Machine` fills in the fields that only
it knows (marked *stamped*). The order of a list is binding: an Apply takes effect before any later
Release of the same list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from msgspec import field

from raysync.core.structs import TaggedStruct, Whole

Push = tuple[str, Whole]
"""The name of a push: (worker, clock)."""

DropReason = Literal["late", "stale", "suspended", "restored", "left", "other"]
"""The kinds of reasons for a Drop; metrics and figures count by them.

`stale`: its worker begins anew, and this step is as good as not made. So a push that is dropped as
stale when it arrives does not count in its worker's lead."""

DROP_REASONS: tuple[DropReason, ...] = get_args(DropReason)


class Apply(TaggedStruct, frozen=True):
    """Make one optimizer step with the weighted mean of what these pushes bring."""

    pushes: tuple[Push, ...]
    version: Whole = -1
    """Stamped: the model version that this update produces."""
    samples_before: Whole = -1
    """Stamped: the number of samples in the pushes that were applied before this update."""
    phase: str = ""
    """The phase whose `update` settings hold, for paradigms that switch; other paradigms have only
    ""."""
    publish: bool = True
    """If False, workers that pull later still get the weights that were published before this
    update."""
    weights: tuple[float, ...] = ()
    """The weight of each push in the mean, in which only ratios count; none: its samples. Under
    `combine: sum` each push is multiplied by its weight."""


class Drop(TaggedStruct, frozen=True):
    """Discard this push without applying it."""

    push: Push
    why: str
    """The reason for a person; it may differ from push to push."""
    reason: DropReason = "other"


class Release(TaggedStruct, frozen=True):
    """Let a worker compute its next iteration."""

    worker: str
    clock: Whole = -1
    """Stamped: the iteration that it computes."""
    version: Whole = -1
    """Stamped: the oldest model version that it may read; with `pull=False` the version of its last
    pull."""
    pull: bool = True
    """If False, the worker continues with the weights that it has."""
    batch_size: Whole | None = None
    """The number of samples of each of its steps; None is the experiment's own batch size."""
    steps: Whole | None = None
    """The optimizer steps of this iteration, behind which the worker pushes what they changed
    (local SGD); None is the experiment's own number."""
    lead: Whole = -1
    """Stamped: the worker's lead over the slowest that takes part, in clocks."""


class Hold(TaggedStruct, frozen=True):
    """State that a worker waits, and why. The machine stamps it with the answer of
    `Paradigm.explain`.
    """

    worker: str
    why: str


class SetTimer(TaggedStruct, frozen=True):
    """Request TimerFired(key) at that time. A new time replaces the old one; `at=None` cancels the
    timer.
    """

    key: str
    at: float | None


class Switch(TaggedStruct, frozen=True):
    """Begin another phase: every member's lead becomes 0, and `Paradigm.on_switch` decides about
    the held workers.
    """

    to: str
    why: str


class Suspend(TaggedStruct, frozen=True):
    """Continue without a worker, as if it had left: `Paradigm.on_leave` is called after this
    answer.

    It stays in the run, and a step under way continues, but it is no member of the roster, nothing
    waits for it, and its push is dropped. After that push it waits.
    """

    worker: str
    why: str
    """The reason, worded so that it completes "it was suspended ..."."""


class Restore(TaggedStruct, frozen=True):
    """Let a suspended worker take part again; it is held, at the pace of the slowest member.

    If it still computes, it was released before the others continued without it: that push is
    dropped, and then the worker joins as a newcomer (`Paradigm.on_join`).
    """

    worker: str


class Note(TaggedStruct, frozen=True):
    """Keep information in the journal. A note is replayed like any decision, but never executed."""

    kind: str
    worker: str
    values: Mapping[str, Any] = field(default_factory=dict)
    """JSON-native values by name."""


Decision = Apply | Drop | Release | Hold | SetTimer | Switch | Suspend | Restore | Note
