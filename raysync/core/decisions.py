"""The machine's instructions to an engine: imperative, immutable.

A paradigm fills in the fields of its choice, `Machine` the *stamped* ones. Order is binding: an
Apply takes effect before a later Release of the same list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from msgspec import field

from raysync.core.structs import TaggedStruct, Whole

Push = tuple[str, Whole]  # A push's name: (worker, clock).

# Metrics and figures count drops by reason. After `stale`, the worker repeats the step; a push that
# is dropped so on arrival adds nothing to its worker's lead.
DropReason = Literal["late", "stale", "suspended", "restored", "left", "other"]

DROP_REASONS: tuple[DropReason, ...] = get_args(DropReason)


class Apply(TaggedStruct, frozen=True):
    """Make one optimizer step with the weighted mean of these pushes."""

    pushes: tuple[Push, ...]
    version: Whole = -1  # stamped: the model version that this update produces
    samples_before: Whole = -1  # stamped: the samples in all pushes applied before this update
    phase: str = ""  # the phase whose `update` settings hold; "" if the paradigm does not switch
    publish: bool = True  # False: later pulls still get the weights published before this update
    # a weight for each push, normalised (empty: by samples); under `combine: sum`, factors as given
    weights: tuple[float, ...] = ()


class Drop(TaggedStruct, frozen=True):
    """Discard a push without applying it."""

    push: Push
    why: str  # for a person; it may differ from push to push
    reason: DropReason = "other"


class Release(TaggedStruct, frozen=True):
    """Let a worker compute its next iteration."""

    worker: str
    clock: Whole = -1  # stamped: the iteration to compute
    # stamped: the oldest version that it may read; without a pull, its last pull's
    version: Whole = -1
    pull: bool = True  # False: compute on the weights of the last pull
    batch_size: Whole | None = None  # samples per step; None: the experiment's
    steps: Whole | None = None  # local optimizer steps before the push; None: the experiment's
    lead: Whole = -1  # stamped: clocks ahead of the slowest member


class Hold(TaggedStruct, frozen=True):
    """State why a worker waits; the machine issues it, with the text of `Paradigm.explain`."""

    worker: str
    why: str


class SetTimer(TaggedStruct, frozen=True):
    """Request TimerFired(key) at that time; a later SetTimer replaces it, `at=None` cancels it."""

    key: str
    at: float | None


class Switch(TaggedStruct, frozen=True):
    """Begin another phase: leads become 0, and `Paradigm.on_switch` decides about held workers."""

    to: str
    why: str


class Suspend(TaggedStruct, frozen=True):
    """Continue without a worker, as if it had left: the machine calls `Paradigm.on_leave` next.

    It finishes a running step, whose push is dropped, and then waits; nothing waits for it.
    """

    worker: str
    why: str  # completes "it was suspended ..."


class Restore(TaggedStruct, frozen=True):
    """Let a suspended worker take part again, held at the pace of the slowest member.

    It first finishes a running step, whose push is dropped, and then joins as a newcomer.
    """

    worker: str


class Note(TaggedStruct, frozen=True):
    """Write information into the journal. A replay checks notes, an engine ignores them."""

    kind: str
    worker: str
    values: Mapping[str, Any] = field(default_factory=dict)  # JSON-native


Decision = Apply | Drop | Release | Hold | SetTimer | Switch | Suspend | Restore | Note
